"""Makes an estimator from the text in a policy's options: `mean`, `discounted:factor=0.99`, `window:size=100`."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.errors import ConfigError
from dispatcher.estimators.discounted import Discounted
from dispatcher.estimators.mean import Mean
from dispatcher.estimators.window import Window

ESTIMATORS: dict[str, type[Mean]] = {"mean": Mean, "discounted": Discounted, "window": Window}
EstimatorMaker = Callable[[float, float], Mean]  # of guess and prior_weight


def estimator_maker(text: str) -> EstimatorMaker:
    """Return a function of (guess, prior_weight) that makes estimators of this kind.

    Raises ConfigError if the text names no estimator or no option of it.

    >>> estimator_maker("window:size=50")(5.0, 0.0).rate
    5.0
    >>> estimator_maker("median")
    Traceback (most recent call last):
    ...
    dispatcher.errors.ConfigError: unknown estimator 'median'; known: mean, discounted, window
    """
    name, _, rest = text.partition(":")
    if name not in ESTIMATORS:
        raise ConfigError(f"unknown estimator {name!r}; known: {', '.join(ESTIMATORS)}")
    options = {}
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        try:
            options[key] = float(value)
        except ValueError:
            raise ConfigError(f"estimator {text!r}: {key!r} must be a number, as in discounted:factor=0.99") from None
    kind = ESTIMATORS[name]

    def make(guess: float, prior_weight: float) -> Mean:
        return kind(guess, prior_weight, **options)

    # A wrong option must be an error of the configuration now, and not when the first pool joins.
    try:
        make(1.0, 0.0)
    except TypeError:
        raise ConfigError(f"estimator {name!r} takes no option {', '.join(options)}") from None
    return make
