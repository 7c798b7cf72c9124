"""Measurements, summary, verdict and thresholds: every request is counted once, and bad runs are invalid."""

import json
import math
from random import Random

import numpy as np
import pytest

from loadgen.attack import thresholds
from loadgen.attack.arrival_fit import SLACK, TOLERANCE, Gaps
from loadgen.attack.arrivals import Poisson, parse
from loadgen.attack.driver import Limits
from loadgen.attack.histogram import Histogram, distribution
from loadgen.attack.measure import measure
from loadgen.attack.plan import Plan, Traffic
from loadgen.attack.records import CLOSED, DROPPED, OPEN, TIMED_OUT, Effort, Records
from loadgen.attack.schedule import schedule
from loadgen.attack.summary import Summary, exit_code, summarize
from loadgen.attack.targets import Request
from loadgen.attack.validity import judge, verdict


def good_run(rate=100.0, seconds=20.0, late=0.0001, response=0.01, seed=1):
    """A run as it should be: sent a little late, answered after exponential times."""
    records, dice = Records(schedule(Poisson(rate, Random(seed)), seconds)), np.random.default_rng(seed)
    n = len(records)
    records.sent[:] = records.planned + late * (0.5 + np.linspace(0, 1, n))
    for i in range(1, n):  # a send takes its time
        records.sent[i] = max(records.sent[i], records.sent[i - 1] + 0.4 * late)
    records.done[:] = records.sent + dice.exponential(response, n)
    records.status[:] = 200
    return records


def effort_of(records, ended=math.inf, **given):
    done = np.where(np.isnan(records.done), ended, records.done)
    busy = (done - records.sent)[~np.isnan(records.sent)].sum()
    return Effort(**({"busy": float(busy), "elapsed": 20.1, "cpu": 1.0} | given))


def summary_of(
    records, rate=100.0, seconds=20.0, warmup=0.0, cut=math.inf, ended=20.1, rules=(), process=None, **effort
):
    plan = Plan(Traffic(rate=rate, duration=seconds, warmup=warmup), Request(("http://a/",)), Limits())
    result = measure(records, process or plan.traffic.process(), seconds, warmup, cut, [ended])
    rules = [thresholds.parse(rule) for rule in rules]
    return summarize(plan, records, result, [effort_of(records, ended, **effort)], rules)


def test_a_good_run_is_valid_and_its_times_are_three():
    records = good_run()
    summary = summary_of(records)
    assert summary.verdict == "valid", summary.warnings
    assert exit_code(summary) == 0
    for times, exact in (
        (summary.latency, records.response),
        (summary.service, records.service),
        (summary.lateness, records.lateness),
    ):
        assert times.mean == pytest.approx(exact.mean())
        assert times.max == exact.max()
        ordered, n = np.sort(exact), len(exact)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
            low, high = ordered[int(share * n) - 1], ordered[min(n - 1, int(share * n) + 1)]
            assert low * 0.999 - 1e-6 <= getattr(times, name) <= high * 1.001 + 1e-6, name
    assert summary.latency.mean == pytest.approx(summary.service.mean + summary.lateness.mean)
    assert summary.unsupported == ["p9999"] if len(records) >= 10_000 else ["p999", "p9999"]


def test_every_request_is_counted_once_whatever_became_of_it():
    records = good_run()
    n = len(records)
    records.status[10:15] = 502
    records.status[20:23], records.error[20:23] = 0, TIMED_OUT
    records.status[30], records.error[30] = 0, CLOSED
    for rows, error in ((slice(40, 44), DROPPED), (slice(n - 2, n), OPEN)):
        records.error[rows], records.status[rows] = error, 0
        records.done[rows] = math.nan
    records.sent[40:44] = math.nan
    summary = summary_of(records, warmup=0.05)
    warm = int((records.planned < 0.05).sum())
    assert summary.warmup_requests == warm
    assert summary.sent + summary.dropped + summary.cut == n - warm
    assert (summary.sent, summary.dropped, summary.cut) == (n - warm - 4, 4, 0)
    assert summary.completed + summary.failed == summary.sent
    assert (summary.failed, summary.unfinished) == (5 + 3 + 1 + 2, 2)
    assert sum(summary.status.values()) == summary.sent
    assert summary.status == {"none": 6, "200": summary.completed, "502": 5}
    assert summary.errors == {"timed out": 3, "closed": 1, "unfinished": 2}
    assert sum(interval.planned for interval in summary.intervals) == n
    assert summary.verdict == "valid with warnings"


def test_a_run_that_was_ended_early_is_about_what_it_sent():
    records = good_run()
    late = records.planned > 15.0
    records.sent[late] = records.done[late] = math.nan
    records.status[late] = 0
    summary = summary_of(records, cut=15.0)
    assert (summary.sent, summary.cut) == ((~late).sum(), late.sum())
    assert summary.verdict == "valid"
    assert summary.achieved_rate == pytest.approx(summary.sent / 15.0)


def bad_runs():
    def stalls(r):  # nothing leaves from 5 s to 6.5 s, then all at once
        stuck = (r.planned > 5.0) & (r.planned < 6.5)
        r.done[stuck] += 6.5 - r.sent[stuck]
        r.sent[stuck] = 6.5

    def stalls_shortly(r):  # two tenths of a second, which only the tail shows
        stuck = (r.planned > 5.0) & (r.planned < 5.4)
        r.done[stuck] += 5.4 - r.sent[stuck]
        r.sent[stuck] = 5.4

    def slows(r):  # every send takes 11 ms, so 90 of 100 a second leave
        spent = r.done - r.sent
        r.sent[:] = np.maximum(r.planned, np.arange(1, len(r) + 1) * 0.0111)
        r.done[:] = r.sent + spent

    def drops(r):
        r.sent[::20] = r.done[::20] = math.nan
        r.status[::20], r.error[::20] = 0, DROPPED

    def fails(r):
        r.status[:] = 503

    def batches(r):  # ten at a time
        r.sent[: len(r) // 10 * 10] = np.repeat(r.planned[9 : len(r) // 10 * 10 : 10], 10)
        r.done[:] = r.sent + 1.0

    def loses(r):
        r.done[5] += 30.0

    yield "stalls", stalls, "lateness"
    yield "stalls shortly", stalls_shortly, "of p99, "
    yield "slows", slows, "a second were sent"
    yield "drops", drops, "dropped"
    yield "fails", fails, "no request was completed"
    yield "batches", batches, "gaps between sends"
    yield "loses", loses, "Little's law"


@pytest.mark.parametrize(("name", "spoil", "says"), list(bad_runs()))
def test_a_run_that_did_not_do_what_it_says_is_invalid(name, spoil, says):
    records = good_run()
    busy = effort_of(records).busy if name == "loses" else None
    spoil(records)
    summary = summary_of(records, **({"busy": busy} if busy else {}))
    assert summary.verdict == "invalid"
    assert exit_code(summary) == 4
    worst = [finding.says for finding in summary.findings if finding.level == "invalid"]
    assert any(says in text for text in worst), worst
    assert all(finding.advice for finding in summary.findings)


@pytest.mark.parametrize("rate", [60.0, 1000.0, pytest.param(4000.0, marks=pytest.mark.slow)])
def test_good_runs_are_not_suspected(rate):
    for seed in range(3):
        summary = summary_of(good_run(rate, late=0.00004, seed=seed), rate)
        assert summary.verdict == "valid", (rate, seed, summary.warnings)


def test_a_stall_that_only_the_far_tail_shows_spoils_that_percentile_and_not_the_run():
    records = good_run(1000.0)
    stuck = (records.planned > 5.0) & (records.planned < 5.05)
    records.done[stuck] += 5.05 - records.sent[stuck]
    records.sent[stuck] = 5.05
    records.done[:] = records.sent + 0.001
    summary = summary_of(records, 1000.0)
    assert summary.verdict == "valid with warnings"
    assert any("of p999, " in text and "use the service times" in text for text in summary.warnings)


def test_one_late_request_at_the_end_spoils_no_short_run():
    records = good_run(1000.0, 1.0)
    records.sent[-1] += 0.03
    records.done[-1] = records.sent[-1] + 0.01
    assert not [text for text in summary_of(records, 1000.0, 1.0).warnings if "in time" in text]


def test_what_was_due_and_waiting_when_the_run_was_ended_is_not_called_never_due():
    """A generator that is ever later, stopped at 10 s of 20."""
    records = good_run()
    records.sent[:] = np.maximum(records.planned, np.arange(1, len(records) + 1) * 0.0125)
    records.done[:] = records.sent + 0.01
    waiting = records.sent > 10.0
    records.sent[waiting] = records.done[waiting] = math.nan
    records.status[waiting] = 0
    summary = summary_of(records, cut=10.0)
    due = int((records.planned < 9.9).sum())
    assert summary.sent + summary.unsent + summary.cut == len(records)
    assert summary.unsent == due - summary.sent
    assert any("in time" in finding.says for finding in summary.findings if finding.level == "invalid")


def test_a_long_plan_ended_early_is_counted_in_no_time():
    records = Records(np.arange(0.0, 200_000.0, 0.5))
    records.sent[:4] = records.done[:4] = records.planned[:4] + 0.001
    records.status[:4] = 200
    summary = summary_of(records, 2.0, 200_000.0, cut=2.0)
    assert (summary.sent, summary.cut) == (4, len(records) - 4)
    assert len(summary.intervals) <= 121


def test_processes_that_end_at_different_times_keep_the_count():
    records = good_run(10.0)
    records.owner[1::2] = 1
    records.done[::10] = math.nan
    records.status[::10], records.error[::10] = 0, OPEN
    ended = np.array([20.5, 24.0])
    done = np.where(np.isnan(records.done), ended[records.owner], records.done)
    efforts = [Effort(busy=float((done - records.sent)[records.owner == k].sum()), elapsed=ended[k]) for k in (0, 1)]
    result = measure(records, None, 20.0, ended=ended)
    assert not [finding for finding in judge(result, None, efforts) if "Little" in finding.says]


def test_a_busy_generator_and_too_few_answers_are_reported():
    assert any("97% of a core" in text for text in summary_of(good_run(), cpu=19.5).warnings)
    few = summary_of(good_run(2.0), 2.0)
    assert any("too few for p90 and above" in text for text in few.warnings)
    assert few.unsupported == ["p90", "p95", "p99", "p999", "p9999"]


def test_a_run_without_an_answer_or_a_request_has_no_times():
    records = Records(np.array([1.0]))
    summary = summary_of(records)
    assert (summary.verdict, summary.sent, summary.latency.p99) == ("invalid", 0, None)
    records.sent[0], records.error[0] = 1.0, OPEN
    summary = summary_of(records)
    assert (summary.verdict, summary.unfinished) == ("invalid", 1)
    assert Summary.model_validate_json(summary.model_dump_json()) == summary
    json.loads(summary.model_dump_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


# -- gaps


def fit_of(process, planned, sent, parts=(0.5,)):
    gaps = Gaps(process, float(np.diff(planned).mean()))
    at = 0
    for end in (*(int(part * len(planned)) for part in parts), len(planned)):
        gaps.add(planned[at:end], sent[at:end])
        at = end
    return gaps.fit()


@pytest.mark.parametrize("text", ["poisson", "sine:depth=0.8,period=5"])
def test_the_distance_is_what_it_says(text):
    process = parse(text, 50.0, Random(1))
    planned = schedule(parse(text, 50.0, Random(1)), 100.0)
    batched = np.ceil(planned * 20) / 20
    result = fit_of(process, planned, batched, (0.1, 0.11, 0.8))
    x = np.sort(np.diff(process.expected(batched)))
    grid = np.linspace(0, 12, 400_001)
    sent = lambda at: np.searchsorted(x, at, side="right") / len(x)  # noqa: E731
    law = lambda at: -np.expm1(-np.maximum(at, 0.0))  # noqa: E731
    exact = max(np.max(sent(grid - SLACK) - law(grid)), np.max(law(grid - SLACK) - sent(grid)))
    assert result.distance == pytest.approx(exact, abs=2e-3)
    assert (result.against, result.gaps) == ("law", len(planned) - 1)


def test_what_leaves_after_later_ones_is_put_in_its_place_whatever_the_parts():
    """Of two processes one is always 0.3 s late: together they are as Poisson as the plan, for a shifted half is."""
    planned = schedule(Poisson(200.0, Random(1)), 50.0)
    sent = planned + np.where(np.random.default_rng(1).random(len(planned)) < 0.5, 0.3, 0.0)
    one = fit_of(Poisson(200.0, Random(0)), planned, sent, ())
    parts = fit_of(Poisson(200.0, Random(0)), planned, sent, tuple(np.arange(1, 50) / 50))
    assert parts == one
    assert parts.distance < 0.02


@pytest.mark.parametrize("text", ["gamma:burstiness=0.3", "mmpp:ratio=9,period=4", "onoff:on=1,off=1"])
def test_what_is_not_poisson_is_compared_with_its_plan(text):
    planned = schedule(parse(text, 100.0, Random(2)), 60.0)
    process = parse(text, 100.0, Random(2))
    as_planned = fit_of(process, planned, planned)
    assert (as_planned.against, as_planned.distance) == ("plan", 0.0)
    batched = fit_of(process, planned, np.ceil(planned * 20) / 20)
    assert batched.distance > batched.allowed


JITTERED = (
    ("constant", 2.0, 20.0),
    ("constant", 50.0, 20.0),
    ("gamma:burstiness=0.1", 100.0, 20.0),
    ("gamma:burstiness=1000", 1000.0, 5.0),
    ("poisson", 1000.0, 10.0),
)


@pytest.mark.parametrize(("text", "rate", "seconds"), JITTERED)
def test_a_jitter_of_a_tenth_of_a_millisecond_is_no_other_process_and_batches_are(text, rate, seconds):
    planned = schedule(parse(text, rate, Random(1)), seconds)
    late = np.random.default_rng(1).exponential(0.00005, len(planned))
    result = fit_of(parse(text, rate, Random(1)), planned, np.maximum.accumulate(planned + late))
    assert result.distance <= result.allowed
    n = len(planned) // 10 * 10
    batched = fit_of(parse(text, rate, Random(1)), planned[:n], np.repeat(planned[9:n:10], 10))
    assert batched.distance > batched.allowed + 0.1


def test_traces_may_be_as_rough_as_they_like():
    for planned in (np.repeat(np.arange(20.0), 50), np.round(schedule(Poisson(30.0, Random(1)), 60.0), 2)):
        result = fit_of(None, planned, planned + np.random.default_rng(1).uniform(0, 0.0002, len(planned)))
        assert result.distance <= result.allowed


def test_few_gaps_are_not_judged():
    assert fit_of(None, np.arange(5.0), np.arange(5.0)) is None
    assert Gaps(None, 1.0).fit() is None


def test_the_allowance_is_that_of_dvoretzky_kiefer_wolfowitz_and_massart():
    """At the level of 1 %, of 300 samples of the law itself none may exceed the allowance less the tolerance by luck
    more often than 4 standard errors of 3."""
    exceeded = 0
    for seed in range(300):
        planned = schedule(Poisson(50.0, Random(seed)), 10.0)
        result = fit_of(Poisson(50.0, Random(0)), planned, planned)
        exceeded += result.distance > result.allowed - TOLERANCE
    assert exceeded <= 3 + 4 * math.sqrt(3)


# -- histograms and thresholds


def test_percentiles_are_values_that_happened_to_three_digits():
    values = np.arange(1, 1001) / 1000
    assert distribution(values) == pytest.approx(
        {"mean": 0.5005, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999, "p9999": 1.0, "max": 1.0},
        rel=1e-3,
    )


def test_a_histogram_holds_any_time_and_writes_itself(tmp_path):
    histogram = Histogram()
    histogram.add(np.array([0.0, 4e-7, 5e-5, 1.0, 100_000.0]))
    result = histogram.summary()
    assert result["max"] == 100_000.0
    assert result["mean"] == pytest.approx(20_000.2, rel=1e-5)
    assert result["p50"] == pytest.approx(5e-5)
    histogram.write_hgrm(tmp_path / "x.hgrm")
    text = (tmp_path / "x.hgrm").read_text()
    assert text.splitlines()[0].split() == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
    assert "Max" in text


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("p99>200ms", False),
        ("p99 > 20 ms", True),
        ("response.p50<20ms", True),
        ("service.p99.9>=1us", True),
        ("lateness.max>1s", False),
        ("MEAN>5MS", True),
        ("latency.p50>1us", True),
        ("errors>0", True),
        ("errors>5%", False),
        ("errors>0.1%", True),
        ("dropped>0", False),
        ("unfinished>=0", True),
        ("rate<95", False),
        ("rate>=95", True),
    ],
)
def test_thresholds(rule, broken):
    records = good_run()
    records.status[:10] = 500
    summary = summary_of(records, rules=[rule])
    (part,) = summary.thresholds
    assert part.broken is broken
    assert exit_code(summary) == (3 if broken else 0)


def test_answers_that_never_came_are_longer_than_any():
    records = good_run()
    records.status[::20], records.error[::20] = 0, TIMED_OUT  # 5 %
    rules = ("p90>1s", "p99>1s", "max>1s", "lateness.p99>1s", "service.p96>1s", "p99<1s")
    assert [part.broken for part in summary_of(records, rules=rules).thresholds] == [
        False,
        True,
        True,
        False,
        True,
        False,
    ]


def test_a_bound_that_is_met_is_not_passed_and_few_answers_are_reported():
    records = good_run()
    records.done[:] = records.planned + 0.2
    summary = summary_of(records, rules=("p99>200ms", "max>200ms", "max>=200ms", "p99.99>1s"))
    assert [part.broken for part in summary.thresholds] == [False, False, True, False]
    assert "of too few responses" in summary.thresholds[3].was


def test_a_time_without_observations_breaks_every_bound_and_an_invalid_run_comes_first():
    records = good_run()
    records.status[:] = 500
    summary = summary_of(records, rules=["p99>1000s"])
    assert summary.thresholds[0].broken
    assert summary.thresholds[0].value is None
    assert exit_code(summary) == 4


NO_RULES = (
    "",
    "p99",
    "p99>",
    ">1s",
    "p99>1",
    "p99>1%",
    "p0>1s",
    "p100>1s",
    "p999>1s",
    "x>1s",
    "a.p99>1s",
    "errors>1s",
    "rate<5%",
    "service.>1s",
    "p99=1s",
    "p99>-1s",
    "p99>1s;rm",
    "rate.p9>1s",
)


@pytest.mark.parametrize("rule", NO_RULES)
def test_rules_that_are_none(rule):
    with pytest.raises(ValueError, match="--fail-if"):
        thresholds.parse(rule)


def test_findings_are_sorted_and_the_words_are_the_contracts():
    assert verdict([]) == "valid"
    result = measure(Records(np.zeros(0)), None, 1.0)
    assert verdict(judge(result, None, [])) == "invalid"
