"""Warnings about LASED's episodes: when they appear, what they name, and where `serve` and `check` show them."""

import json
from random import Random

import pytest
from structlog.testing import capture_logs

from dispatcher import background
from dispatcher.cli import app
from dispatcher.config import Config
from dispatcher.core.types import PoolSpec
from dispatcher.long_episodes import LONG_EPISODE_ARRIVALS, LongEpisodes, first_episode_warning, rates_learned
from dispatcher.persistence import state_file as state
from dispatcher.policies.greedy import Greedy
from dispatcher.policies.lased import Lased
from dispatcher.testing import Table
from tests.proxy.harness import answer_ok, eventually, front

SEVEN_OF_TEN = "7 of 10 pools have no guess"
ADVICE = 'set episodes = "pool"'


def lased(**options):
    return Lased(rng=Random(1), **options)


def config(pools, **more):
    """A configuration of this many pools. more: other sections, or `guesses` by the index of the pool."""
    guesses, drained = more.pop("guesses", {}), more.pop("drained", ())
    entries = [{"name": f"p{i}", "url": f"http://127.0.0.1:{9000 + i}"} for i in range(pools)]
    for i, guess in guesses.items():
        entries[i]["guess"] = guess
    for i in drained:
        entries[i]["drained"] = True
    return Config.model_validate({"pools": entries, **more})


def test_three_pools_without_guesses_bring_the_warning_and_two_do_not():
    assert ADVICE in first_episode_warning(config(3), lased(), set())
    assert first_episode_warning(config(2), lased(), set()) is None


def test_the_warning_counts_the_pools_without_a_guess():
    guesses = {0: 1.0, 4: 2.0, 9: 3.0}
    assert SEVEN_OF_TEN in first_episode_warning(config(10, guesses=guesses), lased(), set())


@pytest.mark.parametrize(
    ("configured", "policy", "learned"),
    [
        (config(3), lased(episodes="pool"), set()),
        (config(3), lased(max_episode_arrivals=300), set()),
        (config(3), Greedy(rng=Random(1)), set()),
        (config(3, guesses={0: 1.0, 1: 1.0, 2: 5.0}), lased(), set()),
        (config(3, guesses={0: 1.0}), lased(), {"p1", "p2"}),
        (config(3, drained=[2]), lased(), set()),
        (config(3, state_url="redis://127.0.0.1:6379"), lased(), set()),
    ],
    ids=["by pool", "a cap", "another policy", "guesses", "learned", "drained", "shared"],
)
def test_no_warning_where_episodes_end_or_the_rates_are_known(configured, policy, learned):
    assert first_episode_warning(configured, policy, learned) is None


def test_a_rate_is_learned_once_an_episode_has_ended():
    t = Table(lased(n0=1), [PoolSpec("a"), PoolSpec("b")])
    tickets = [t.arrive(), t.arrive()]
    t.finish(tickets[0], service_time=0.5)
    assert rates_learned(t.router.policy) == set()
    t.finish(tickets[1], service_time=0.5)
    assert rates_learned(t.router.policy) == {"a", "b"}
    assert rates_learned(Greedy(rng=Random(1))) == set()


def test_a_long_episode_is_reported_once():
    t, episodes = Table(lased(n0=1), [PoolSpec("a"), PoolSpec("b")]), LongEpisodes()
    policy = t.router.policy
    t.arrive()
    policy.episode.arrivals = LONG_EPISODE_ARRIVALS
    assert episodes.check(policy) is None
    t.arrive()
    warning = episodes.check(policy)
    assert "episode 1 of lased is still open after 10,001 arrivals" in warning
    assert ADVICE in warning
    t.arrive()
    assert episodes.check(policy) is None, "each episode is reported once"
    for ticket in list(t.open):
        t.finish(ticket)
    t.arrive()
    policy.episode.arrivals = LONG_EPISODE_ARRIVALS + 1
    assert "episode 2" in episodes.check(policy)


def test_a_policy_with_episodes_by_pool_is_not_reported():
    policy = lased(episodes="pool", max_episode_arrivals=10**6)
    policy.episode.arrivals = LONG_EPISODE_ARRIVALS + 1
    assert LongEpisodes().check(policy) is None


def warnings(logs, event):
    return [entry["reason"] for entry in logs if entry["event"] == event and entry["log_level"] == "warning"]


async def test_serve_warns_at_the_start_and_at_a_reload():
    with capture_logs() as logs:
        async with front(answer_ok, answer_ok, answer_ok, policy="lased") as f:
            assert len(warnings(logs, "first_episode_may_not_end")) == 1
            f.service.reloader.reload()
    assert len(warnings(logs, "first_episode_may_not_end")) == 2


async def test_serve_warns_of_a_long_episode(monkeypatch):
    monkeypatch.setattr(background, "EPISODE_INTERVAL_SECONDS", 0.01)
    with capture_logs() as logs:
        async with front(answer_ok, policy="lased") as f:
            f.service.router.policy.episode.arrivals = LONG_EPISODE_ARRIVALS + 1
            await eventually(lambda: warnings(logs, "episode_is_long"))


def test_check_prints_the_warning_unless_the_state_file_has_estimates(tmp_path, capsys):
    names = [f"p{i}" for i in range(3)]
    path = tmp_path / "state.json"
    pools = "".join(f'[[pools]]\nname = "{name}"\nurl = "http://127.0.0.1:9"\n' for name in names)
    (tmp_path / "dispatcher.toml").write_text(f'state_file = {json.dumps(str(path))}\npolicy.name = "lased"\n{pools}')

    def lines():
        assert not app(["check", "--config", str(tmp_path / "dispatcher.toml")], standalone_mode=False)
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]

    (line,) = lines()
    assert "3 of 3 pools have no guess" in line
    path.write_text("damaged")
    assert len(lines()) == 1
    rates = {name: {"weight": 9.0, "total": 3.0, "observations": 9.0} for name in names}
    state.save(path, {state.RATES: rates})
    assert lines() == []
