"""An experiment as a TOML file: what is simulated, along which axes, in which sizes, and what it must show.

`scenario` holds what all cells share, in the names of `sim.model.Scenario`, or `rho` for the load instead of `lam`.
`axes` span the grid: a cell is one entry of each. An entry is a value of the axis's own name, or a table of several
names with a `label`. `sizes` say how much; each may narrow axes (`only`) and has a `live` form. `claims` name checks
of `claims.py`.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator
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


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Live(_Strict):
    """The size of a run on real processes. rate: requests a second, to which all rates are scaled."""

    arrivals: int = Field(ge=1)
    reps: int = Field(default=1, ge=1)
    rate: float = Field(gt=0)
    only: dict[str, list[str]] = {}


class Size(_Strict):
    """arrivals and reps of every cell; warmup: arrivals left out of the queue averages; only: labels by axis."""

    arrivals: int = Field(ge=1)
    reps: int = Field(ge=1)
    warmup: int = Field(default=0, ge=0)
    only: dict[str, list[str]] = {}
    live: Live | None = None


class Claim(_Strict):
    """says: the sentence; check: a function of `claims.py`; given: its arguments; live: judged on a live run too, which
    is short and has few replications; full_only: only in full size."""

    says: str
    check: str
    given: dict[str, Any] = {}
    live: bool = False
    full_only: bool = False


class Spec(_Strict):
    """One experiment. picture: a function of `pictures.py`, with its arguments in `drawing`."""

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
    """A point of the grid: its label on every axis, and what is simulated there."""

    labels: dict[str, str]
    scenario: Scenario

    @property
    def name(self) -> str:
        return ", ".join(f"{axis} {label}" if axis != "policy" else label for axis, label in self.labels.items())


def known() -> list[str]:
    """The names of the experiments that come with the package, the paper's first."""
    return [
        path.name.removesuffix(".toml")
        for folder in (PAPER, BEYOND)
        for path in sorted(FOLDER.joinpath(folder).iterdir(), key=lambda path: path.name)
        if path.name.endswith(".toml")
    ]


def load(name: str) -> Spec:
    """The experiment of this name, or in this file. Raises ConfigError that names the file and the key."""
    try:
        if name.endswith(".toml"):
            text, name = Path(name).read_text(encoding="utf-8"), Path(name).stem
        elif name in known():
            folder = PAPER if FOLDER.joinpath(PAPER, f"{name}.toml").is_file() else BEYOND
            text = FOLDER.joinpath(folder, f"{name}.toml").read_text(encoding="utf-8")
        else:
            raise ConfigError(
                f"there is no experiment {name!r}; known: {', '.join(known())}, or a file ending in .toml"
            )
        return Spec(**(tomllib.loads(text) | {"name": name}))
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def cells(spec: Spec, size: Size, live: bool = False) -> Iterator[Cell]:
    """The grid in the order of its axes, the last one fastest. Raises ConfigError at what cannot be simulated."""
    only, how_much = (
        dict(size.only),
        {"arrivals": size.arrivals, "warmup": size.warmup, "points": spec.points, "log": spec.log},
    )
    if live:
        if size.live is None:
            raise ConfigError(f"{spec.name}: this size has no live form")
        only |= size.live.only
        how_much |= {"arrivals": size.live.arrivals, "warmup": size.warmup * size.live.arrivals // size.arrivals}
    if unknown := set(only) - set(spec.axes):
        raise ConfigError(f"{spec.name}: only: there is no axis {', '.join(sorted(unknown))}")
    axes: dict[str, list[tuple[str, Any]]] = {}
    for axis, entries in spec.axes.items():
        labelled = [(label_of(entry), entry) for entry in entries]
        if len({label for label, _ in labelled}) < len(entries) or not entries:
            raise ConfigError(f"{spec.name}: axes.{axis}: entries must be there, and their labels must differ")
        wanted = only.get(axis, [label for label, _ in labelled])
        if missing := set(wanted) - {label for label, _ in labelled}:
            raise ConfigError(f"{spec.name}: only.{axis}: no entry is labelled {', '.join(sorted(missing))}")
        axes[axis] = [(label, entry) for label, entry in labelled if label in wanted]
    for point in itertools.product(*axes.values()):
        labels = {axis: label for axis, (label, _) in zip(axes, point, strict=True)}
        given = dict(spec.scenario)
        for axis, (_, entry) in zip(axes, point, strict=True):
            fields = dict(entry) if isinstance(entry, dict) else {axis: entry}
            fields.pop("label", None)
            given["options"] = given.get("options", {}) | fields.pop("options", {})
            given |= fields
        try:
            scenario = _scenario(given | how_much)
            registry.create(scenario.policy, Random(0), scenario.policy_options)
        except KeyError as error:
            raise ConfigError(f"{spec.name}: cell {labels}: {error} is missing") from error
        except (ConfigError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{spec.name}: cell {labels}: {error}") from error
        yield Cell(labels, scenario)


def label_of(entry: Any) -> str:
    """How an entry of an axis is called."""
    if isinstance(entry, dict):
        return str(entry.get("label") or " ".join(label_of(value) for value in entry.values()))
    if isinstance(entry, list):
        return ", ".join(map(label_of, entry))
    return f"{entry:g}" if isinstance(entry, float) else str(entry)


def _scenario(given: dict[str, Any]) -> Scenario:
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    mu = given["mu"]
    servers = given.get("servers") or (1,) * len(mu)
    rho = given.pop("rho", None)
    if rho is not None and "lam" in given:
        raise ConfigError("give lam or rho, not both")
    if rho is not None:
        given["lam"] = rho * sum(rate * c for rate, c in zip(mu, servers, strict=True))
    given.setdefault("guess", mu)
    return Scenario(**given)
