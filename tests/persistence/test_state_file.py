"""What is learned outlives the process: written whole, restored, and ignored where it cannot be believed."""

import json
import os
import subprocess
import sys
from random import Random

import pytest
from structlog.testing import capture_logs

from dispatcher.config import Config
from dispatcher.core.types import Phase, PoolSpec
from dispatcher.errors import ConfigError
from dispatcher.persistence import state_file as state
from dispatcher.policies.lased import Lased
from dispatcher.service import Service
from dispatcher.testing import Table
from tests.proxy.harness import front, get, status

RATES = {"a": {"weight": 50.0, "total": 5.0, "observations": 60}, "b": {"weight": 9.5, "total": 1.0, "observations": 9}}

CURVE = {
    "capacity": [4.0],
    "responses": [12],
    "seconds_with": [0.0, 2.0, 1.0],
    "departures_from": [0.0, 9.0, 3.0],
    "found": [9.0, 3.0, 0.0],
    "response_sum": [2.0, 0.5, 0.0],
    "response_squares": [0.6, 0.1, 0.0],
}
KNOWN = {"rates": RATES, "curves": {"a": CURVE}}


def test_it_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "state.json"
    assert state.load(path) == {"rates": {}, "curves": {}}
    state.save(path, KNOWN)
    assert state.load(path) == KNOWN
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"], "nothing is left beside it"


def test_a_failed_write_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    state.save(path, KNOWN)
    monkeypatch.setattr(state.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        state.save(path, {})
    assert state.load(path) == KNOWN
    assert len(list(tmp_path.iterdir())) == 1


def changed(**change):
    return json.dumps({"version": 1, "pools": {"a": {**RATES["a"], **change}}})


def changed_curve(**change):
    return json.dumps({"version": 1, "pools": {}, "curves": {"a": {**CURVE, **change}}})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version": 2, "pools": {}}',
        '{"version": 1}',
        '{"version": 1, "pools": {"a": 3}}',
        "\x00\xff",
        changed(weight=0),
        changed(total=-1.0),
        changed(total=float("inf")),
        changed(observations=None),
        changed(weight="9"),
        changed(weight=True),
        changed(total=float("nan")),
        '{"version": 1, "pools": {}, "curves": []}',
        '{"version": 1, "pools": {}, "curves": {"a": 3}}',
        changed_curve(found=3.0),
        changed_curve(found=[-1.0, 0.0, 0.0]),
        changed_curve(found=["1", 0.0, 0.0]),
    ],
)
def test_what_cannot_be_believed_is_refused(tmp_path, text):
    path = tmp_path / "state.json"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(ConfigError, match="state_file"):
        state.load(path)


@pytest.mark.parametrize("estimator", ["mean", "discounted:factor=0.98", "window:size=50"])
def test_a_policy_goes_on_from_what_it_remembered(estimator):
    first = Table(Lased(rng=Random(1), estimator=estimator), [PoolSpec("a"), PoolSpec("b")])
    for i in range(60):
        first.finish(first.arrive(), service_time=0.5 if i % 2 else 0.25)
    second = Lased(rng=Random(1), estimator=estimator)
    second.set_state(first.router.policy.get_state())
    table = Table(second, [PoolSpec("a"), PoolSpec("b"), PoolSpec("new", guess=7.0)])
    assert second.rate("a") == pytest.approx(first.router.policy.means["a"].rate)
    assert second.rate("new") == 7.0
    assert second.get_state() == first.router.policy.get_state()
    assert table.arrive().decision.phase is Phase.EXPLORE, "the new pool is not known yet"
    alone = Lased(rng=Random(1), estimator=estimator)
    alone.set_state(first.router.policy.get_state())
    assert Table(alone, [PoolSpec("a"), PoolSpec("b")]).arrive().decision.phase is Phase.EXPLOIT


def test_a_file_of_an_older_version_of_this_program_is_read(tmp_path):
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"version": 1, "pools": RATES}))
    assert state.load(path) == {"rates": RATES, "curves": {}}


@pytest.mark.parametrize("policy", ["lased", "curve"])
async def test_a_restart_keeps_what_was_learned(tmp_path, policy):
    path = tmp_path / "state.json"
    async with front(policy=policy, state_file=str(path)) as f:
        for _ in range(20):
            assert status(await f.ask(get())) == 200
        await f.wait_idle()
        learned = f.service.router.policy.get_state()
    assert learned
    async with front(policy=policy, state_file=str(path)) as f:
        assert f.service.router.policy.get_state() == learned


async def test_a_file_of_another_policy_costs_one_warning_and_keeps_what_that_policy_learned(tmp_path):
    path = tmp_path / "state.json"
    async with front(policy="lased", state_file=str(path)) as f:
        assert status(await f.ask(get())) == 200
        await f.wait_idle()
        learned = f.service.router.policy.get_state()
    with capture_logs() as logs:
        async with front(policy="curve", state_file=str(path)) as f:
            assert status(await f.ask(get())) == 200
            await f.wait_idle()
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["state_of_another_policy"]
    assert state.load(path)["rates"] == learned
    assert state.load(path)["curves"].keys() == learned.keys()


@pytest.mark.parametrize(
    "damage", [{"found": [1.0]}, {"found": []}, {"capacity": []}, {name: [0.0] * 5000 for name in CURVE}]
)
async def test_curves_that_cannot_be_are_not_used(tmp_path, damage):
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"version": 1, "pools": RATES, "curves": {"p0": {**CURVE, **damage}}}))
    with capture_logs() as logs:
        async with front(policy="curve", state_file=str(path)) as f:
            assert status(await f.ask(get())) == 200
            await f.wait_idle()
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["state_ignored"]
    assert state.load(path)["rates"] == RATES


async def test_a_damaged_file_is_ignored_with_a_warning_and_replaced(tmp_path):
    path = tmp_path / "state.json"
    path.write_text("{")
    with capture_logs() as logs:
        async with front(policy="lased", state_file=str(path)) as f:
            assert status(await f.ask(get())) == 200
            await f.wait_idle()
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["state_ignored"]
    assert state.load(path) is not None


async def test_a_policy_that_learns_nothing_cannot_keep_it():
    config = Config.model_validate(
        {"policy": {"name": "jsq"}, "pools": [{"name": "a", "url": "http://127.0.0.1:9"}], "state_file": "x"}
    )
    with pytest.raises(ConfigError, match="policy 'jsq' learns nothing that could be kept"):
        Service(config)


def test_a_state_file_that_cannot_be_written_is_found_out_at_the_start(tmp_path):
    command = [sys.executable, "-m", "dispatcher", "serve", "--pool", "a=http://127.0.0.1:9", "--listen", "127.0.0.1:0"]
    env = os.environ | {"LASED_STATE_FILE": str(tmp_path / "nowhere" / "x"), "LASED_ADMIN": "127.0.0.1:0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: state_file: cannot write")
