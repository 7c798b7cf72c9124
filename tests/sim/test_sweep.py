"""Sweeps: the same results on one core, in threads, in processes and on a Dask cluster of two processes."""

import dataclasses

import pytest

from dispatcher.errors import ConfigError
from loadgen.sim import sweep as sweeps
from loadgen.sim.model import Scenario, simulate
from loadgen.sim.sweep import Engine, sweep, units

LASED = Scenario("lased", 1.0, (1.0, 1.0), (1.0, 3.0), 400)
EWMA = dataclasses.replace(LASED, policy="peak_ewma")
JOBS = [(LASED, range(5)), (EWMA, range(3))]


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(sweeps, "UNIT_ARRIVALS", {False: 800, True: 800})


def gathered(done):
    found = {}
    for unit, results in done:
        found.setdefault(unit.index, []).extend(results)
    return {index: sorted(results, key=lambda result: result.seed) for index, results in found.items()}


WANTED = {i: [simulate(scenario, seed) for seed in seeds] for i, (scenario, seeds) in enumerate(JOBS)}


def test_on_one_core():
    assert gathered(sweep(units(JOBS), jobs=1)) == WANTED


def test_in_threads_and_processes(monkeypatch):
    monkeypatch.setattr(sweeps, "SMALL_SWEEP_ARRIVALS", 0)
    work = units(JOBS)
    assert [unit.compiled for unit in work] == [True] * 3 + [False] * 2
    assert gathered(sweep(work, jobs=2)) == WANTED


def test_a_failure_in_another_process_arrives_here(monkeypatch):
    monkeypatch.setattr(sweeps, "SMALL_SWEEP_ARRIVALS", 0)
    broken = dataclasses.replace(LASED, policy="tests.sim.test_trace:Broken")
    with pytest.raises(Exception, match="broke its contract"):
        gathered(sweep(units([(broken, range(4))]), jobs=2))


def test_an_engine_that_cannot_is_refused():
    assert [unit.compiled for unit in units([(LASED, [1])], Engine.OBJECT)] == [False]
    with pytest.raises(ConfigError, match="--engine compiled cannot run this: policy 'peak_ewma'"):
        units([(EWMA, [1])], Engine.COMPILED)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of distributed and tornado, at their own ends
def test_on_a_dask_cluster_of_two_processes():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        assert gathered(sweep(units(JOBS), dask=cluster.scheduler_address)) == WANTED


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_is_not_there_is_named(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(sweeps, "DASK_TIMEOUT_SECONDS", 0.3)
    with pytest.raises(ConfigError, match=r"--dask tcp://127\.0\.0\.1:9: no scheduler answers there"):
        gathered(sweep(units(JOBS), dask="tcp://127.0.0.1:9"))
