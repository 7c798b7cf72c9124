"""Reads an experiment from a TOML file: scenario, axes, sizes and claims.

`scenario` holds what all cells share, under the names of `sim.model.Scenario`; `rho`, the load, may replace `lam`.
`axes` span a grid, in which a cell has one entry of each axis. An entry is a value for the axis's own name, or a table
of several names with a `label`. A size may restrict axes (`only`) and may have a `live` form. `claims` name checks of
`claims.py`.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dispatcher import registry
from dispatcher.errors import ConfigError
from loadgen.sim.model import Scenario

FOLDER = resources.files("loadgen.experiments")
PAPER, BEYOND = "paper", "beyond"


class StrictTable(BaseModel):
    """A table of a TOML file. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Live(StrictTable):
    """The size of a run on real processes. rate: requests a second, to which all rates are scaled."""

    arrivals: int = Field(ge=1)
    reps: int = Field(default=1, ge=1)
    rate: float = Field(gt=0)
    only: dict[str, list[str]] = {}


class Size(StrictTable):
    """One size of the experiment.

    arrivals, reps: of every cell. warmup: arrivals that the queue averages leave out. only: labels by axis.
    """

    arrivals: int = Field(ge=1)
    reps: int = Field(ge=1)
    warmup: int = Field(default=0, ge=0)
    only: dict[str, list[str]] = {}
    live: Live | None = None


class Claim(StrictTable):
    """A statement that the results must support.

    says: the statement. check: a function of `claims.py`. given: its arguments.
    live: whether a live run is judged, too; it is short and has few replications.
    full_only: whether only the full size is judged.
    """

    says: str
    check: str
    given: dict[str, Any] = {}
    live: bool = False
    full_only: bool = False


class Spec(StrictTable):
    """One experiment. picture: a function of `pictures.py`. drawing: its arguments. points, log: as in `Scenario`."""

    title: str
    source: str
    picture: Literal["curves", "heat", "dots", "shares"]
    scenario: dict[str, Any]
    axes: dict[str, list[Any]]
    sizes: dict[Literal["quick", "full"], Size]
    claims: list[Claim] = []
    points: int = Field(default=10, ge=2, le=10_000)
    log: bool = False
    drawing: dict[str, Any] = {}
    name: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A point of the grid. labels: by axis. scenario: what is simulated at this point."""

    labels: dict[str, str]
    scenario: Scenario

    @property
    def name(self) -> str:
        return ", ".join(f"{axis} {label}" if axis != "policy" else label for axis, label in self.labels.items())


def experiment_names() -> list[str]:
    """Return the names of the experiments that come with the package, the paper's first."""
    return [
        path.name.removesuffix(".toml")
        for folder in (PAPER, BEYOND)
        for path in sorted(FOLDER.joinpath(folder).iterdir(), key=lambda path: path.name)
        if path.name.endswith(".toml")
    ]


def load(name: str) -> Spec:
    """Read an experiment. name: of a known experiment, or of a file that ends in .toml.

    Raises ConfigError, which names the file and the key.
    """
    try:
        if name.endswith(".toml"):
            text, name = Path(name).read_text(encoding="utf-8"), Path(name).stem
        elif name in experiment_names():
            folder = PAPER if FOLDER.joinpath(PAPER, f"{name}.toml").is_file() else BEYOND
            text = FOLDER.joinpath(folder, f"{name}.toml").read_text(encoding="utf-8")
        else:
            raise ConfigError(
                f"there is no experiment {name!r}; known: {', '.join(experiment_names())}, or a file ending in .toml"
            )
        return Spec(**(tomllib.loads(text) | {"name": name}))
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]  # an error is one line
        raise ConfigError(f"{name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def grid(spec: Spec, size: Size, live: bool = False) -> Iterator[Cell]:
    """Yield the cells in the order of the axes, the last axis fastest.

    live: whether the size's live form is used. Raises ConfigError for a cell that cannot be simulated.
    """
    only, amount = dict(size.only), {"arrivals": size.arrivals, "warmup": size.warmup}
    if live:
        if size.live is None:
            raise ConfigError(f"{spec.name}: this size has no live form")
        only |= size.live.only
        # The warm-up is the same share of the arrivals.
        amount = {"arrivals": size.live.arrivals, "warmup": size.warmup * size.live.arrivals // size.arrivals}
    axes = _selected(spec, only)
    for point in itertools.product(*axes.values()):
        labels = {axis: label for axis, (label, _) in zip(axes, point, strict=True)}
        fields = dict(spec.scenario)
        for axis, (_, entry) in zip(axes, point, strict=True):
            changes = dict(entry) if isinstance(entry, dict) else {axis: entry}
            changes.pop("label", None)
            # Each axis may set some options of the policy, so options are merged and not replaced.
            fields["options"] = fields.get("options", {}) | changes.pop("options", {})
            fields |= changes
        try:
            scenario = _scenario(fields | amount | {"points": spec.points, "log": spec.log})
            # Wrong options of the last cell must not be noticed only after hours.
            registry.create(scenario.policy, Random(0), scenario.policy_options)
        except KeyError as error:
            raise ConfigError(f"{spec.name}: cell {labels}: {error} is missing") from error
        except (ConfigError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{spec.name}: cell {labels}: {error}") from error
        yield Cell(labels, scenario)


def _selected(spec: Spec, only: Mapping[str, Sequence[str]]) -> dict[str, list[tuple[str, Any]]]:
    """Return the entries of each axis with their labels, restricted to the labels in `only`. Raises ConfigError."""
    if unknown := set(only) - set(spec.axes):
        raise ConfigError(f"{spec.name}: only: there is no axis {', '.join(sorted(unknown))}")
    axes = {}
    for axis, entries in spec.axes.items():
        labelled = [(label_of(entry), entry) for entry in entries]
        labels = {label for label, _ in labelled}
        if len(labels) < len(entries) or not entries:
            raise ConfigError(f"{spec.name}: axes.{axis}: there must be entries, and their labels must differ")
        selected = only.get(axis, labels)
        if missing := set(selected) - labels:
            raise ConfigError(f"{spec.name}: only.{axis}: no entry is labelled {', '.join(sorted(missing))}")
        axes[axis] = [(label, entry) for label, entry in labelled if label in selected]
    return axes


def label_of(entry: Any) -> str:
    """Return the label of an axis's entry."""
    if isinstance(entry, dict):
        return str(entry.get("label") or " ".join(label_of(value) for value in entry.values()))
    if isinstance(entry, list):
        return ", ".join(map(label_of, entry))
    return f"{entry:g}" if isinstance(entry, float) else str(entry)


def _scenario(fields: dict[str, Any]) -> Scenario:
    """Return the scenario of a cell; `rho` is replaced by `lam`. Raises what `grid` translates to ConfigError."""
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    mu = fields["mu"]
    servers = fields.get("servers") or (1,) * len(mu)
    rho = fields.pop("rho", None)
    if rho is not None and "lam" in fields:
        raise ConfigError("give lam or rho, not both")
    if rho is not None:
        fields["lam"] = rho * sum(rate * c for rate, c in zip(mu, servers, strict=True))
    fields.setdefault("guess", mu)  # without a guess the rates are known
    return Scenario(**fields)
