"""In which order a pool serves: golden values of estimator and planner, exact means, and what each order does."""

import math
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from loadgen.experiments.studies.runner import spread
from loadgen.sim import job_scheduling as contextual
from loadgen.sim.job_scheduling import Source
from workers.scheduling.disciplines import ALWAYS_SORTED_JOBS, Esept, Fcfs, Job, Sept
from workers.scheduling.lcp import CAPS, SAMPLED_ARRIVALS, Lcp, edges_between
from workers.scheduling.logistic import Logistic, fit, mean_rounds
from workers.scheduling.planner import Queue, optimum, sept

FAST, SLOW = (1.0, 0.0), (1.0, 1.0)
THETA = (math.log(9), -2 * math.log(9))  # done with chance 0.9, and 0.1
ROWS = [
    (FAST, 1, True),
    (SLOW, 7, True),
    (FAST, 2, True),
    (SLOW, 12, True),
    (FAST, 1, True),
    ((1.0, 0.5), 3, True),
    (SLOW, 4, False),
]
P = Queue((0.9, 0.1), (0.2, 0.05), (20, 60))
Q = Queue((0.9, 0.05), (0.225, 0.025), (24, 60))
R = Queue((0.6, 0.3), (0.14, 0.14), (24, 50))


def close(*values, to=1e-12):
    return pytest.approx(values, abs=to)


# -- the estimator, against a reference program


def test_coefficients_learned_one_by_one():
    model = Logistic(2, max_rows=0)
    for x, rounds, finished in ROWS:
        model.learn(x, rounds, finished)
    assert model.theta == close(-0.167532404341, -1.390735192156)
    assert model._c.ravel() == close(0.330348711467, -0.282932442165, -0.282932442165, 0.413472400629)


def test_coefficients_fitted_at_once():
    assert fit(ROWS)[0] == close(-0.204407552639, -1.489529361329)
    assert fit(ROWS, start=np.array([5.0, -5.0]))[0] == close(-0.204407552639, -1.489529361329)


def test_coefficients_come_near_the_truth():
    source = Source.of((0.9, 0.1), (0.8, 0.2), 0.25)
    order = Esept(2, age=0.0)
    contextual.serve(order, contextual.draw(source, 40_000, 1), 40_000)
    assert order.model.theta == pytest.approx(THETA, abs=0.1)
    assert not order.model._rows, "rows are kept as long as they are fitted"


def test_senseless_durations_teach_nothing_and_long_ones_break_nothing():
    model = Logistic(2)
    for rounds in (0, -1, math.nan, math.inf):
        model.learn(FAST, rounds)
    assert model.observations == 0
    for _ in range(100):
        model.learn(SLOW, 1e7)
    assert all(map(math.isfinite, model.theta))
    assert mean_rounds((0.0, -1e6), SLOW) == 1e9


# -- the planner, against the same


def test_the_plan_in_small():
    plan = optimum(Queue((0.9, 0.1), (0.2, 0.05), (4, 4)), 12)
    assert plan.values[1:] == close(
        0.25,
        0.315,
        0.36695,
        0.415352,
        0.4627466125,
        0.509889296163,
        0.557031087835,
        0.604259172233,
        0.651602799383,
        0.699069619202,
        0.746658999915,
        0.794367140806,
    )
    assert [int(act[0, 1]) for act in plan.acts[1:]] == [2] + [0] * 11, (
        "a lone slow job is begun in the last round only"
    )
    assert all(int(act[n]) == 1 for act in plan.acts[1:] for n in ((1, 0), (1, 1), (4, 4)))


@pytest.mark.parametrize(
    ("queue", "best", "order"),
    [
        (
            P,
            {5: 0.462747, 10: 0.699070, 20: 1.162509, 50: 1.877956, 100: 2.288299, 200: 2.589492},
            {5: 0.478438, 10: 0.759691, 20: 1.240286, 50: 1.959028, 100: 2.374374, 200: 2.678716},
        ),
        (
            Q,
            {5: 0.378751, 10: 0.500424, 20: 0.743815, 50: 1.481586, 100: 2.387855, 200: 3.004091},
            {5: 0.398808, 10: 0.605380, 20: 1.092868, 50: 2.314208, 100: 3.281762, 200: 3.981581},
        ),
        (R, {10: 0.964655, 50: 1.505609, 100: 1.630922, 200: 1.677400}, {50: 1.505609, 100: 1.630922, 200: 1.677400}),
    ],
    ids="PQR",
)
def test_jobs_left_by_horizon(queue, best, order):
    found, following = optimum(queue, 200).values, sept(queue, 200).values
    assert {h: found[h] for h in best} == pytest.approx(best, abs=6e-7)
    assert {h: following[h] for h in order} == pytest.approx(order, abs=6e-7)


@pytest.mark.parametrize(
    ("queue", "regrets"),
    [
        (P, {2: 0.088269, 5: 0.065992, 10: 0.018334, 20: 0.0}),
        (Q, {2: 1.029704, 10: 0.902594, 20: 0.627315, 40: 0.156238, 80: 0.0}),
    ],
    ids="PQ",
)
def test_planning_the_last_rounds_is_enough(queue, regrets):
    best = optimum(queue, 400).values[-1]
    found = {window: contextual.number_left_by_window(queue, 400, window) - best for window in regrets}
    assert found == pytest.approx(regrets, abs=6e-7)


def test_a_lone_slow_job_is_begun_in_the_last_round_or_long_before_the_end():
    for queue, long in ((P, 16), (Q, 61)):
        begun = [h for h, act in enumerate(optimum(queue, 100).acts) if h and act[0, 1] == 2]
        assert begun == [1, *range(long, 101)]


# -- stationary means


@pytest.mark.parametrize(
    ("p", "shares", "lam", "means"),
    [
        ((0.9, 0.1), (0.8, 0.2), 0.25, (4.794444, 2.932857, 7.690247)),
        ((0.9, 0.05), (0.9, 0.1), 0.25, (10.277778, 4.878704, 18.376389)),
        ((0.6, 0.3), (0.5, 0.5), 0.28, (1.861481, 1.684734, 2.115556)),
    ],
    ids="PQR",
)
def test_closed_forms(p, shares, lam, means):
    rates = [lam * share for share in shares]
    found = (
        contextual.fcfs_mean(p, rates),
        contextual.priority_mean(p, rates),
        contextual.priority_mean(p[::-1], rates[::-1]),
    )
    assert found == pytest.approx(means, abs=6e-7)


@pytest.mark.parametrize(("order", "exact"), [("fcfs", 1.861481), ("sept", 1.684734), ("reverse", 2.115556)])
def test_simulated_means_are_exact(order, exact):
    source = Source.of((0.6, 0.3), (0.5, 0.5), 0.28)
    runs = [contextual.run(order, source, 30_000, seed).mean_number(1000, 30_000) for seed in range(6)]
    mean, error = spread(runs)
    assert abs(mean - exact) <= 4 * error


def test_the_recursion_ends_where_the_closed_form_is():
    assert sept(R, 3000).values[-1] == pytest.approx(1.684734, abs=1e-5)


# -- the orders


def filled(order, *jobs):
    made = [Job(x, float(arrived)) for x, arrived in jobs]
    for job in made:
        order.add(job)
    return made


def served(order, now=100.0):
    found = []
    while (job := order.next(now)) is not None:
        found.append(job)
    return found


def test_fcfs_is_the_order_of_arrival():
    order = Fcfs()
    a, b, c = filled(order, (SLOW, 0), (FAST, 1), (FAST, 2))
    order.drop(b)
    assert len(order) == 2
    assert served(order) == [a, c]
    assert order.next(1.0) is None


def test_sept_is_the_order_of_the_means_and_of_equals_that_of_arrival():
    order = Sept(THETA)
    a, b, c, d = filled(order, (SLOW, 0), (FAST, 1), (SLOW, 2), (FAST, 3))
    assert served(order) == [b, d, a, c]


def test_aging_gives_credit_for_each_round_waited():
    """A slow job is nine rounds slower: at 0.1 a round it has made that up after 90 rounds."""
    for older, first in ((80, "fast"), (100, "slow")):
        order = Sept(THETA, age=0.1)
        slow, fast = filled(order, (SLOW, 0), (FAST, older))
        assert order.next(float(older)) is (slow if first == "slow" else fast)


def test_esept_begins_in_order_of_arrival_and_learns_who_is_slow():
    order = Esept(2, age=0.0)
    a, b = filled(order, (SLOW, 0), (FAST, 1))
    assert served(order) == [a, b]
    for _ in range(20):
        order.done(SLOW, 10.0)
        order.done(FAST, 1.0)
    c, d = filled(order, (SLOW, 2), (FAST, 3))
    assert served(order) == [d, c]


def test_what_waits_is_sorted_anew_when_something_was_learned():
    order = Esept(2, age=0.0)
    a, b = filled(order, (SLOW, 0), (FAST, 1))
    order.done(SLOW, 50.0)
    assert served(order) == [b, a]


def test_many_are_sorted_anew_only_when_a_tenth_more_was_learned():
    order = Esept(2, age=0.0)
    filled(order, *[(SLOW, k) for k in range(ALWAYS_SORTED_JOBS + 10)], (FAST, 1e6))
    for _ in range(100):
        order.done(SLOW, 50.0)
    assert order.next(0.0).x == FAST
    theta = order.theta
    order.done(SLOW, 50.0)
    order.next(0.0)
    assert order.theta == theta


@pytest.mark.parametrize(
    "make",
    [
        Fcfs,
        lambda: Sept(THETA),
        lambda: Esept(2),
        lambda: Lcp(2, 1e6),
        lambda: Lcp(2, 100.0),
        lambda: Lcp(2, 300.0, learn=0.5),
    ],
)
def test_every_job_is_served_once_or_dropped(make):
    order, dice, waiting = make(), Random(3), []
    out = []
    for t in range(600):
        for _ in range(dice.choice((0, 0, 1, 2))):
            job = Job(dice.choice((FAST, SLOW)), float(t))
            order.add(job)
            waiting.append(job)
        if waiting and dice.random() < 0.2:
            gone = waiting.pop(dice.randrange(len(waiting)))
            order.drop(gone)
        assert len(order) == len(waiting)
        if dice.random() < 0.5 and (job := order.next(float(t))) is not None:
            waiting.remove(job)
            out.append(job)
            order.done(job.x, 1.0 + dice.random() * (9 if job.x == SLOW else 1))
    end = served(order, 1e7)
    assert set(map(id, end)) == set(map(id, waiting))
    assert len(order) == 0


def test_lcp_plans_as_the_optimum_does_for_what_it_has_learned():
    """On the same jobs, decision for decision, a replay of the table by hand leaves as many."""
    source = Source.of((0.9, 0.05), (0.9, 0.1), 0.25)
    for seed in range(12):
        jobs = contextual.draw(source, 600, seed)
        order = Lcp(2, 600, window=80)
        left = contextual.serve(order, jobs, 600).left
        assert left == replayed(order, jobs, 600)


def replayed(order, jobs, rounds):
    queue, edges, acts = order._plan
    mean = {x: mean_rounds(order.theta, x) for x in (FAST, SLOW)}
    waiting, service, ends = [[], []], 0, -1
    coming = dict(zip(jobs.arrived.tolist(), range(len(jobs.x)), strict=True))
    began = {}
    before = Esept(2, age=0.0)
    number = {}
    for t in range(rounds):
        left = rounds - t
        if not service and left > 80:
            job = before.next(float(t))
            if job is not None:
                j = number[id(job)]
                service, ends, began[j] = 1, t + int(jobs.rounds[j]) - 1, job
                waiting[int(mean[job.x] > edges[0])].remove(j)
        elif not service:
            state = tuple(min(len(each), cap) for each, cap in zip(waiting, queue.caps, strict=True))
            act = int(acts[left][state])
            if act:
                j = waiting[act - 1].pop(0)
                service, ends, began[j] = 1, t + int(jobs.rounds[j]) - 1, None
        if service and t == ends:
            service = 0
            if left > 80:
                j = next(k for k in reversed(began) if began[k] is not None)
                before.done(jobs.x[j], float(jobs.rounds[j]))
        if t in coming:
            j = coming[t]
            job = Job(jobs.x[j], float(t))
            number[id(job)] = j
            before.add(job)
            waiting[int(mean[job.x] > edges[0])].append(j)
    return len(waiting[0]) + len(waiting[1]) + (service > 0)


@pytest.mark.slow
def test_lcp_leaves_fewer_than_sept():
    source = Source.of((0.9, 0.05), (0.9, 0.1), 0.25)
    differences = []
    for seed in range(120):
        jobs = contextual.draw(source, 600, seed)
        left = [
            contextual.serve(contextual.make_discipline(text, source, 600), jobs, 600).left
            for text in ("lcp/window=80", "sept")
        ]
        differences.append(float(left[0] - left[1]))
    mean, error = spread(differences)
    assert mean < -2 * error
    assert abs(mean + 1.05) < 4 * error  # the exact difference is 1.05 where nothing must be learned


def test_lcp_serves_the_oldest_while_it_learns_and_never_idles_without_an_end():
    order = Lcp(2, 1000.0, learn=0.5)
    a, b = filled(order, (SLOW, 0), (FAST, 1))
    for _ in range(50):
        order.done(SLOW, 10.0)
        order.done(FAST, 1.0)
    assert served(order, 10.0) == [a, b]
    c, d = filled(order, (SLOW, 2), (FAST, 3))
    assert served(order, 600.0) == [d, c]
    filled(order, *[(FAST, k) for k in range(300)])
    assert len(served(order, 880.0)) == 300
    (e,) = filled(order, (SLOW, 980))
    assert order.next(990.0) is None, "it would not be done before the end"
    assert order.next(1001.0) is e, "after the end there is none to wait for"


def test_classes_of_contexts():
    assert edges_between([1.0], 3) == []
    assert edges_between([1.0, 2.0, 2.0, 3.0], 3) == [1.0, 2.0]
    assert edges_between([float(k) for k in range(300)], 3) == [99.0, 199.0]
    assert edges_between([1.0] * 99 + [2.0, 3.0, 4.0], 2) == [1.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sept(THETA, age=-1),
        lambda: Sept(THETA, age=math.nan),
        lambda: Esept(0),
        lambda: Esept(2, kappa=0.0),
        lambda: Lcp(2, 0.0),
        lambda: Lcp(2, 10.0, window=0),
        lambda: Lcp(2, 10.0, kmax=4),
        lambda: Lcp(2, 10.0, learn=1.0),
    ],
)
def test_senseless_settings_are_refused(make):
    with pytest.raises(ValueError, match=r"must be|needs"):
        make()


# -- the plan of lcp, by hand


def planning(window=50, horizon=20_000, n=5000):
    """An lcp that has seen n arrivals with means of 1 + e^(-v), v falling from 2 to -4; all of them are served."""
    order = Lcp(2, horizon, window=window)
    order.model = SimpleNamespace(theta=(0.0, 1.0), observations=1)
    values = [2 - 6 * k / n for k in range(n)]
    for k, v in enumerate(values):
        order.add(Job((1.0, v), float(k)))
    assert len(served(order, 10_000.0)) == n
    return order, values


def test_the_classes_of_a_plan_are_thirds_with_their_harmonic_means_and_all_arrivals():
    order, values = planning()
    order.add(Job((1.0, 0.0), 19_960.0))
    order.next(19_960.0)
    queue, edges, acts = order._plan
    kept = sorted(1 + math.exp(-v) for v in [*values, 0.0][-SAMPLED_ARRIVALS:])
    third = SAMPLED_ARRIVALS // 3
    assert edges == close(kept[third - 1], kept[2 * SAMPLED_ARRIVALS // 3 - 1])
    parts = kept[:third], kept[third : 2 * SAMPLED_ARRIVALS // 3], kept[2 * SAMPLED_ARRIVALS // 3 :]
    assert queue.p == close(*(len(part) / math.fsum(part) for part in parts))
    assert queue.l == close(*((5001 * len(part) / SAMPLED_ARRIVALS + 0.5 / 3) / 19_961 for part in parts))
    assert queue.caps == CAPS[3]
    assert len(acts) == 51


def test_within_a_class_the_best_is_begun_of_equals_the_oldest_and_beyond_the_cap_all_are_one():
    order, _ = planning()
    many = filled(order, *[((1.0, 1.0 + (k % 2) / 10), 19_950 + k / 100) for k in range(60)])
    first, second = order.next(19_980.5), order.next(19_980.5)
    assert (first, second) == (many[1], many[3])
    assert len(served(order, 19_981.0)) == 58


def test_a_part_of_a_round_is_left_for_what_can_be_done_in_it():
    order, _ = planning()
    (slow,) = filled(order, ((1.0, -4.0), 19_990.0))
    assert order.next(19_998.5) is None  # two rounds, by the table
    assert order.next(19_999.5) is slow  # the last one


def test_no_more_than_half_of_all_rounds_are_planned():
    assert Lcp(2, 50.0, window=100).window == 25


def test_what_cannot_be_fitted_leaves_what_was_learned():
    x = (1.0, 1.0)
    model = Logistic(2, kappa=1e-3)
    for _ in range(300):
        model.learn(x, 1e12)
        model.learn(x, 1.0)
    assert all(map(math.isfinite, model.theta))
    with pytest.raises(ValueError, match="kappa"):
        Logistic(2, kappa=1e-4)


def test_a_fit_of_many_rows_takes_few_steps(monkeypatch):
    dice = np.random.default_rng(1)
    x = np.hstack([np.ones((2000, 1)), dice.uniform(-1, 1, (2000, 15))])
    theta = dice.normal(0, 0.5, 16)
    rounds = dice.geometric(1 / (1 + np.exp(-x @ theta)))
    solved = []
    solve = np.linalg.solve
    monkeypatch.setattr(np.linalg, "solve", lambda a, b: solved.append(1) or solve(a, b))
    found, inverse = fit([(tuple(row), float(n), True) for row, n in zip(x, rounds, strict=True)])
    assert len(solved) <= 12
    assert np.abs(found - theta).max() < 6 * math.sqrt(np.diag(inverse).max())
