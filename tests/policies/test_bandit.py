"""Policies that learn from acceptances and rejections alone: exp3_ix, tsallis_inf, recharge."""

import math
from random import Random

import numpy as np
import pytest

from dispatcher.core.types import Job, Outcome, PoolSpec
from dispatcher.errors import ConfigError
from dispatcher.policies.bandit_weights import SumTree, WeightArray
from dispatcher.policies.exp3_ix import Exp3Ix
from dispatcher.policies.recharge import Recharge
from dispatcher.policies.tsallis_inf import TsallisInf, solve
from dispatcher.testing.doubles import Table

UNIFORMS = (
    0.05,
    0.95,
    0.5,
    0.3,
    0.7,
    0.1,
    0.9,
    0.45,
    0.6,
    0.2,
    0.8,
    0.35,
    0.15,
    0.85,
    0.55,
    0.25,
    0.65,
    0.4,
    0.75,
    0.02,
)
ACCEPTED = tuple(bit == "1" for bit in "01000110001010010010")
AS_PRINTED = {"window": 0, "floor": 0.0}
EVERY = (Exp3Ix, TsallisInf, Recharge)


class Script(Random):
    """Dice that fall as told, and 0 once they have."""

    def __init__(self, *uniforms):
        super().__init__(0)
        self.left = list(uniforms)

    def random(self):
        return self.left.pop(0) if self.left else 0.0


def pools(n, **spec):
    return [PoolSpec(str(i), **spec) for i in range(n)]


def lived(policy):
    """The golden life: the arms drawn, and the chances that each had before the 5th and the 20th decision."""
    table, arms, seen = Table(policy, pools(3, guess=1 / 3)), "", {}
    for t, accepted in enumerate(ACCEPTED, 1):
        policy.sends += 1
        policy.begin_decision(t)
        seen[t] = list(policy.probabilities().values())
        policy.sends -= 1
        ticket = table.arrive()
        arms += ticket.pool.id
        if accepted:
            table.finish(ticket)
        else:
            table.reject(ticket)
    assert not table.recording.faults
    return arms, seen


def close(*values):
    return pytest.approx(values, abs=1e-12)


# A reference program's values, to 12 digits: 3 pools, the uniforms and answers above.
GOLDEN = {
    "exp3": (
        lambda: Exp3Ix(rng=Script(*UNIFORMS), bias=0.0, each_send=True, **AS_PRINTED),
        (0.272345992521, 0.114286351227, 0.613367656252),
        (0.355888976514, 0.277131556472, 0.366979467014),
        "02112021202002202020",
    ),
    "exp3-ix": (
        lambda: Exp3Ix(rng=Script(*UNIFORMS), each_send=True, **AS_PRINTED),
        (0.330663268658, 0.163263155293, 0.506073576049),
        (0.377271063448, 0.257213756882, 0.365515179670),
        "02112021202002102020",
    ),
    "tsallis-iw": (
        lambda: TsallisInf(rng=Script(*UNIFORMS), estimator="iw"),
        (0.164070185227, 0.048824719651, 0.787105095122),
        (0.412624456781, 0.238268939797, 0.349106603423),
        "02112022202002102020",
    ),
    "tsallis-rv": (
        lambda: TsallisInf(rng=Script(*UNIFORMS)),
        (0.121493263580, 0.237492958683, 0.641013777736),
        (0.357055881051, 0.211658529652, 0.431285589297),
        "02122021202102001020",
    ),
    "ix+smooth": (
        lambda: Exp3Ix(rng=Script(), each_send=True, smooth=True, **AS_PRINTED),
        None,
        (0.466625613919, 0.243946024620, 0.289428361461),
        "01212010210120102102",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_lives_as_the_reference(name):
    make, fifth, twentieth, arms = GOLDEN[name]
    lived_arms, seen = lived(make())
    assert lived_arms == arms
    assert fifth is None or seen[5] == close(*fifth)
    assert seen[20] == close(*twentieth)


def test_the_tree_lives_as_the_reference():
    policy = Exp3Ix(rng=Script(*UNIFORMS), **AS_PRINTED)
    arms, _ = lived(policy)
    assert arms == "02112021202002102020"
    assert list(policy.probabilities().values()) == close(0.302678452108, 0.280742442467, 0.416579105426)


def test_recharge_lives_as_the_reference():
    policy = Recharge(rng=Script(), cap=1e9)
    table, arms = Table(policy, pools(3, guess=1 / 3)), ""
    policy._last_attempt = np.array([0.0, -0.25, -0.5])
    for t, accepted in enumerate(ACCEPTED, 1):
        table.now = t - 1.0
        ticket = table.arrive()
        arms += ticket.pool.id
        (table.finish if accepted else table.reject)(ticket)
    assert arms == "21012101201101201010"
    assert [policy.rate(str(i)) for i in range(3)] == close(0.222229055565, 0.284072752579, 0.089145438411)
    assert policy._information.tolist() == close(4.285807807594, 5.373030558628, 2.849478568271)


def turned_away(table, pool, times=1, retry_after=0.0):
    """So many tries at this pool, all rejected."""
    for _ in range(times):
        others = frozenset(spec for spec in table.router.policy.specs if spec != pool)
        table.reject(table.arrive(others), retry_after)


@pytest.mark.parametrize("make", EVERY)
def test_a_pool_that_rejects_is_chosen_less_and_one_that_accepts_again_is_found_out(make):
    options = {"window": 500} if make is not Recharge else {}
    policy = make(rng=Random(3), **options)
    table = Table(policy, pools(2))

    def share(rejecting, sends):
        """Of pool 1, over the last quarter."""
        chosen = []
        for _ in range(sends):
            ticket = table.arrive()
            chosen.append(ticket.pool.id)
            (table.reject if ticket.pool.id == rejecting else table.finish)(ticket)
        return chosen[-sends // 4 :].count("1") / (sends // 4)

    assert share("1", 500) < 0.1
    assert share("0", 2000) > 0.8
    assert not table.recording.faults


@pytest.mark.parametrize("make", EVERY)
def test_a_pool_that_asks_to_be_left_alone_is_left_alone_until_then(make):
    table = Table(make(rng=Random(1)), pools(3))
    turned_away(table, "0", retry_after=20.0)
    until = table.now + 20.0
    while table.now < until - 1:
        assert table.arrive().pool.id != "0"
    table.now = until
    assert "0" in {table.arrive().pool.id for _ in range(100)}


@pytest.mark.parametrize("make", EVERY)
def test_if_all_ask_to_be_left_alone_none_is_and_nobody_rests_longer_than_a_minute(make):
    table = Table(make(rng=Random(1)), pools(2))
    for pool in "01":
        turned_away(table, pool, retry_after=1e9)
    assert {table.arrive().pool.id for _ in range(40)} == {"0", "1"}
    turned_away(table, "0")
    table.now += 61
    table.arrive()
    assert not table.router.policy.resting


@pytest.mark.parametrize("make", EVERY)
def test_at_one_instant_none_that_rests_is_chosen_and_not_always_the_same(make):
    policy = make(rng=Random(1))
    table = Table(policy, pools(4))
    turned_away(table, "0", retry_after=50.0)
    fleet, now = table.router.fleet, table.now
    chosen = [policy.choose(Job(k), fleet, now).pool for k in range(40)]
    assert set(chosen) == {"1", "2", "3"}
    assert "0" not in chosen


@pytest.mark.parametrize("make", [Exp3Ix, TsallisInf])
def test_chances_are_those_of_the_pools_shown_and_grow_in_proportion_while_one_rests(make):
    policy = make(rng=Random(1))
    table = Table(policy, pools(4))
    turned_away(table, "1", 3)
    table.finish(table.arrive())
    shown = table.arrive(frozenset({"3"}))
    now = policy.probabilities()
    assert shown.decision.probability == pytest.approx(now[shown.pool.id] / (1 - now["3"]))
    policy._begin_rest("3", table.now + 50.0)
    resting = policy.probabilities()
    assert resting["3"] == 0
    assert math.fsum(resting.values()) == pytest.approx(1)
    for pool in "012":
        assert resting[pool] == pytest.approx(now[pool] / (1 - now["3"]))
    drawn = policy.choose(Job(1), table.router.fleet, table.now)
    assert drawn.probability == pytest.approx(policy.probabilities()[drawn.pool])


@pytest.mark.parametrize("make", [Exp3Ix, TsallisInf])
@pytest.mark.parametrize("away", [frozenset(), frozenset({"4"})])
def test_chances_told_are_chances_had(make, away):
    policy = make(rng=Random(5))
    table = Table(policy, pools(5))
    turned_away(table, "2", 2)
    table.finish(table.arrive())
    for _ in range(100_000):  # no feedback from here on, so chances move with η alone; here that has come to rest
        policy.sends += 1
    policy.begin_decision(table.now)
    chances = policy.probabilities()
    shown = {pool: chance for pool, chance in chances.items() if pool not in away}
    n, counts = 5000, dict.fromkeys(chances, 0)
    for _ in range(n):
        ticket = table.arrive(away)
        counts[ticket.pool.id] += 1
        p = shown[ticket.pool.id] / math.fsum(shown.values())
        assert ticket.decision.probability == pytest.approx(p, rel=0.02)
    for pool, chance in shown.items():
        p = chance / math.fsum(shown.values())
        assert abs(counts[pool] / n - p) < 4 * math.sqrt(p * (1 - p) / n) + 0.002


@pytest.mark.parametrize("make", [Exp3Ix, TsallisInf])
@pytest.mark.parametrize("taken", [True, False])
def test_not_to_be_shown_is_neither_a_rejection_nor_an_acceptance(make, taken):
    """All pools answer alike; one was not shown for long. Nothing is known against it, nor much for it."""
    policy = make(rng=Random(1), window=1000)
    table = Table(policy, pools(3))
    for k in range(3000):
        ticket = table.arrive(frozenset({"0"} if k >= 1000 else ()))
        (table.finish if taken else table.reject)(ticket)
        if k == 1000:
            before = policy.probabilities()["0"]
    if taken:
        assert policy.probabilities()["0"] == pytest.approx(before, abs=0.01)
    else:
        assert policy.losses[0] < max(policy.losses)  # what it was not asked it has not refused


@pytest.mark.parametrize("make", [Exp3Ix, TsallisInf])
@pytest.mark.parametrize("smooth", [False, True])
def test_pools_that_weigh_nothing_beside_the_best_can_still_be_told_apart(make, smooth):
    options = {"floor": 0.0} if make is Exp3Ix else {}
    policy = make(rng=Random(1), window=1, smooth=smooth, **options)
    table = Table(policy, pools(3))
    for _ in range(300):
        turned_away(table, "1", 8)
        turned_away(table, "2", 4)
        table.finish(table.arrive())
    table.arrive(frozenset({"0"}))
    table.remove("0")
    assert math.fsum(policy.probabilities().values()) == pytest.approx(1)
    table.arrive()
    assert not table.recording.faults


def test_what_comes_back_late_is_not_charged_to_pools_that_took_its_place():
    """One leaves and comes back, so it stands elsewhere; as many are there as before."""
    policy = TsallisInf(rng=Random(1))
    table = Table(policy, pools(2))
    for _ in range(200):
        turned_away(table, "1")
        table.finish(table.arrive(frozenset({"1"})))
    while (late := table.arrive()).pool.id != "1":
        table.finish(late)
    table.remove("0")
    table.add(PoolSpec("0"))
    before = dict(zip(policy.names, policy.losses.tolist(), strict=True))
    table.finish(late)
    assert dict(zip(policy.names, policy.losses.tolist(), strict=True)) == before


def test_newton_finds_the_root_from_any_guess():
    dice = np.random.default_rng(1)
    for m in (1, 2, 5, 30, 200):
        for _ in range(15):
            losses = dice.exponential(float(dice.choice([0.1, 3.0, 100.0])), m)
            eta = float(dice.choice([0.01, 0.3, 2.0]))
            low, high = losses.min() - 2 * math.sqrt(m) / eta, losses.min() - 2 / eta
            best, root = solve(losses, eta, -math.inf)
            for guess in (low, high, dice.uniform(low, high), 1e9, -1e9, math.nan):
                weights, x = solve(losses, eta, float(guess))
                assert weights == pytest.approx(best, abs=1e-9)
                assert x == pytest.approx(root, rel=1e-6)
            assert best.sum() == pytest.approx(1)


def test_a_policy_that_is_in_force_again_knows_its_pools_once():
    policy = Exp3Ix(rng=Random(1))
    table = Table(policy, pools(2))
    table.router.switch(TsallisInf(rng=Random(1)), table.now)
    table.router.switch(policy, table.now)
    assert policy.names == ["0", "1"]
    assert math.fsum(policy.probabilities().values()) == pytest.approx(1)


@pytest.mark.parametrize("make", EVERY)
def test_what_is_not_known_teaches_nothing(make):
    policy = make(rng=Random(1))
    table = Table(policy, pools(3))
    turned_away(table, "1", 2)

    def beliefs():
        policy.begin_decision(table.now)
        return [policy.rate(str(i)) for i in range(3)] if make is Recharge else list(policy.losses)

    before = beliefs()
    for outcome in (Outcome.CANCELLED, Outcome.FAILED, Outcome.TIMED_OUT):
        table.finish(table.arrive(), outcome)
    assert beliefs() == pytest.approx(before, abs=1e-9)


@pytest.mark.parametrize("make", [Exp3Ix, TsallisInf])
def test_a_pool_that_joins_begins_with_the_mean_chance(make):
    policy = make(rng=Random(1))
    table = Table(policy, pools(4))
    for pool, times in (("0", 1), ("1", 4)):
        turned_away(table, pool, times)
    table.finish(table.arrive())
    table.add(PoolSpec("new"))
    policy.begin_decision(table.now)
    tolerance = 0.02 if make is Exp3Ix else 0.05  # η is another for five
    assert policy.probabilities()["new"] == pytest.approx(1 / 5, abs=tolerance)


@pytest.mark.parametrize("make", EVERY)
def test_beliefs_stay_with_their_pool_when_another_leaves(make):
    policy = make(rng=Random(1))
    table = Table(policy, pools(4))
    turned_away(table, "3", 3)
    turned_away(table, "1", 1, retry_after=30.0)
    held = table.arrive(frozenset({"1", "2", "3"}))
    told = (
        (lambda: {pool: policy.rate(pool) for pool in policy.specs})
        if make is Recharge
        else (lambda: dict(zip(policy.names, map(float, policy.losses), strict=True)))
    )
    before = told()
    table.remove("0")
    assert {pool: told()[pool] - told()["2"] for pool in "123"} == pytest.approx(
        {pool: before[pool] - before["2"] for pool in "123"}
    )
    table.reject(held)  # of a pool that is gone
    assert table.arrive().pool.id in "23"
    assert not table.recording.faults


def test_the_floor_keeps_the_worst_within_reach_and_the_sum_never_sinks():
    policy = Exp3Ix(rng=Random(1), floor=1e-3)
    table = Table(policy, pools(3))
    for _ in range(3000):
        ticket = table.arrive()
        (table.finish if ticket.pool.id == "0" else table.reject)(ticket)
    chances = policy.probabilities()
    assert min(chances.values()) >= 0.9e-3
    turned_away(table, "0", 1500)
    table.arrive()
    assert policy.weights.total >= 0.5
    assert policy.probabilities()["0"] < 0.5


def test_tree_and_array_find_the_same_and_never_what_weighs_nothing():
    dice = Random(2)
    for n in (1, 2, 3, 7, 64, 100):
        weights = [dice.choice([0.0, dice.random()]) for _ in range(n)]
        weights[dice.randrange(n)] = 1.0
        tree, array = SumTree(), WeightArray(np.array(weights))
        for weight in weights:
            tree.append(weight)
        assert tree.total == pytest.approx(array.total)
        for _ in range(200):
            at = dice.random() * tree.total
            assert tree.find(at) == array.find(at)
        assert weights[tree.find(tree.total)] > 0
        assert weights[array.find(tree.total)] > 0
        changed = dice.randrange(n)
        tree[changed] = 3.0
        assert tree.total == pytest.approx(math.fsum(weights) - weights[changed] + 3.0)


def test_recharge_knows_each_rate_and_how_well():
    policy, dice = Recharge(rng=Random(1)), Random(4)
    table = Table(policy, pools(2, guess=1.0))
    rates, last = {"0": 0.05, "1": 0.3}, {"0": 0.0, "1": 0.0}
    for _ in range(6000):
        ticket = table.arrive()
        pool = ticket.pool.id
        empty = dice.random() < -math.expm1(-rates[pool] * (table.now - last[pool]))
        last[pool] = table.now
        (table.finish if empty else table.reject)(ticket)
    for pool, estimate in policy.estimates().items():
        assert estimate.rate == pytest.approx(rates[pool], rel=0.25)
        low, high = estimate.interval
        assert low < estimate.rate < high
        assert estimate.observations > 500


@pytest.mark.parametrize(
    ("make", "options", "word"),
    [
        (Exp3Ix, {"window": -1}, "window"),
        (Exp3Ix, {"window": 10**400}, "window"),
        (Exp3Ix, {"floor": 0.6}, "floor"),
        (Exp3Ix, {"bias": math.nan}, "bias"),
        (TsallisInf, {"estimator": "best"}, "estimator"),
        (Recharge, {"cap": 0.5}, "cap"),
    ],
)
def test_senseless_options_are_refused(make, options, word):
    with pytest.raises(ConfigError, match=word):
        make(rng=Random(1), **options)
