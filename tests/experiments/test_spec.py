"""Experiments as files: the grid they span, and one clear line for what is wrong in them."""

import pytest

from dispatcher.errors import ConfigError
from loadgen.experiments.claims import CHECKS
from loadgen.experiments.spec import experiment_names, grid, load

FILE = """
title = "a trial"
source = "ours"
picture = "curves"
points = 4
[drawing]
lines = "policy"
[scenario]
mu = [1.0, 2.0]
options = { ties = "random" }
[axes]
rho = [0.3, 0.6]
policy = ["sed", { label = "quick learner", policy = "lased", options = { n0 = 2 } }]
[sizes.quick]
arrivals = 100
reps = 2
[sizes.full]
arrivals = 1000
reps = 5
warmup = 100
only = { rho = ["0.6"] }
live = { arrivals = 50, rate = 20.0 }
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "trial.toml"
    path.write_text(FILE)
    return path


def test_the_grid(file):
    spec = load(str(file))
    cells = list(grid(spec, spec.sizes["quick"]))
    assert [cell.labels for cell in cells] == [
        {"rho": rho, "policy": policy} for rho in ("0.3", "0.6") for policy in ("sed", "quick learner")
    ]
    scenario = cells[1].scenario
    assert (scenario.policy, scenario.arrivals, scenario.points) == ("lased", 100, 4)
    assert scenario.lam == pytest.approx(0.9)
    assert scenario.options == {"ties": "random", "n0": 2}, "options add up"
    assert cells[0].scenario.options == {"ties": "random"}
    assert scenario.guess == (1.0, 2.0)


def test_a_size_narrows_the_grid_and_has_a_live_form(file):
    spec = load(str(file))
    cells = list(grid(spec, spec.sizes["full"], live=True))
    assert [cell.labels["rho"] for cell in cells] == ["0.6", "0.6"]
    assert (cells[0].scenario.arrivals, cells[0].scenario.warmup) == (50, 5)
    with pytest.raises(ConfigError, match="this size has no live form"):
        list(grid(spec, spec.sizes["quick"], live=True))


@pytest.mark.parametrize("name", experiment_names())
def test_every_experiment_that_comes_with_it_is_sound(name):
    spec = load(name)
    assert set(spec.sizes) == {"quick", "full"}
    for size in spec.sizes.values():
        assert list(grid(spec, size))
        if size.live:
            assert list(grid(spec, size, live=True))
    assert all(claim.check in CHECKS for claim in spec.claims)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "a trial"', "titel = 3", "trial: title: Field required"),
        ("arrivals = 100\n", "arrivals = 0\n", "trial: sizes.quick.arrivals: Input should be greater"),
        ("points = 4", "points =", "trial: Invalid value"),
        ('picture = "curves"', 'picture = "cake"', "trial: picture: Input should be 'curves'"),
        ("mu = [1.0, 2.0]", "mu = [1.0, 2.0]\nmiu = 3", "cell {'rho': '0.3', 'policy': 'sed'}: .*miu"),
        ("n0 = 2", "nO = 2", "quick learner.*no option 'nO'"),
        ("rho = [0.3, 0.6]", "rho = [-0.3, 0.6]", "lam must be positive"),
        ('only = { rho = ["0.6"] }', 'only = { roh = ["0.6"] }', "only: there is no axis roh"),
        ("rho = [0.3, 0.6]", "rho = [0.6, 0.6]", r"axes\.rho: there must be entries, and their labels must differ"),
        ("mu = [1.0, 2.0]", "mu = []", "mu is empty"),
        ("mu = [1.0, 2.0]", "mu = [1.0, 2.0]\nlam = 1.0", "give lam or rho, not both"),
        ("mu = [1.0, 2.0]", "mu = [1.0, 2.0]\nservers = [0, 1]", "servers must be from 1"),
        ("mu = [1.0, 2.0]", "mu = [1.0, 2.0]\nservers = [1.5, 1]", "servers must be from 1"),
        ("mu = [1.0, 2.0]", "mu = [1.0, 2.0]\nguess = [0, 1]", "guess must be a positive number"),
        ("mu = [1.0, 2.0]", "mu = [1.0, 2.0]\nservice = 5", "cell"),
        ("mu = [1.0, 2.0]\n", "", "'mu' is missing"),
        ('only = { rho = ["0.6"] }', 'only = { rho = ["0.7"] }', r"only\.rho: no entry is labelled 0\.7"),
    ],
)
def test_a_mistake_in_a_file_is_named(file, old, new, message):
    assert old in FILE
    file.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        grids(file)


def grids(file):
    spec = load(str(file))
    return [list(grid(spec, size)) for size in spec.sizes.values()]


def test_unknown_names_list_the_known():
    with pytest.raises(ConfigError, match="there is no experiment 'fig9'; known: fig4, fig5, fig8, starvation"):
        load("fig9")
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file"):
        load("nowhere.toml")
