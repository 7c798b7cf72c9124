"""Processor sharing in virtual time: exact means of the theory, a plain program beside it, and wrong use."""

import math
from collections import deque
from random import Random

import pytest

from workers.curves import Curve, Retrograde, Servers, Soft, Table
from workers.distributions import parse
from workers.processor_sharing import ProcessorSharing
from workers.station import Station


def run(pool, jobs):
    """Feed (instant, work) of each job in order. Returns the end of each job and the time integral of the number."""
    ends, area, at = [0.0] * len(jobs), 0.0, 0.0

    def end_until(now):
        nonlocal area, at
        while pool.next_end() <= now:
            end = pool.next_end()
            area, at = area + len(pool) * (end - at), end
            ends[pool.pop(end)] = end

    for key, (now, work) in enumerate(jobs):
        end_until(now)
        area, at = area + len(pool) * (now - at), now
        pool.join(now, key, work)
    end_until(math.inf if not len(pool) else 1e18)
    return ends, area / at


def traffic(seed, lam, law, n):
    arrivals, works, now = Random(f"{seed}/arrivals"), parse(law, 1.0, Random(f"{seed}/work")), 0.0
    jobs = []
    for _ in range(n):
        now += arrivals.expovariate(lam)
        jobs.append((now, works.sample(now)))
    return jobs


def mean_response(make, lam, law, n=3000, reps=12):
    """The mean over independent runs, and its standard error. The first tenth of a run is left out."""
    means = []
    for seed in range(reps):
        jobs = traffic(seed, lam, law, n)
        ends, _ = run(make(), jobs)
        times = [end - at for end, (at, _) in zip(ends, jobs, strict=True)][n // 10 :]
        means.append(sum(times) / len(times))
    mean = sum(means) / reps
    return mean, math.sqrt(sum((each - mean) ** 2 for each in means) / (reps - 1) / reps)


def birth_and_death(lam, curve, most=400):
    """The mean response of exponential services, of which n requests complete curve.rate(n) a second."""
    weight, total, area = 1.0, 1.0, 0.0
    for n in range(1, most):
        weight *= lam / curve.rate(n)
        total, area = total + weight, area + n * weight
    return area / total / lam


@pytest.mark.parametrize("law", ["exp", "hyperexp:cv=2", "fixed"])
def test_one_shared_server_has_the_same_mean_response_for_every_law(law):
    """M/G/1-PS: E[S]/(1 − ρ)."""
    mean, se = mean_response(ProcessorSharing, 0.6, law)
    assert abs(mean - 1 / (1 - 0.6)) <= 4 * se


def test_a_request_of_work_x_takes_x_over_one_minus_rho():
    """M/G/1-PS, by the work of the request; short ones and long ones apart."""
    ratios = []
    for seed in range(16):
        jobs = traffic(seed, 0.6, "hyperexp:cv=2", 4000)
        ends, _ = run(ProcessorSharing(), jobs)
        sums = {False: [0.0, 0.0], True: [0.0, 0.0]}
        for end, (at, work) in zip(ends[400:], jobs[400:], strict=True):
            sums[work > 1][0] += end - at
            sums[work > 1][1] += work
        ratios.append([time / work for time, work in sums.values()])
    for each in zip(*ratios, strict=True):
        mean = sum(each) / len(each)
        se = math.sqrt(sum((x - mean) ** 2 for x in each) / (len(each) - 1) / len(each))
        assert abs(mean - 2.5) <= 4 * se


@pytest.mark.parametrize(
    ("lam", "speed", "law"),
    [
        (2.1, Servers(3), "exp"),
        (2.1, Servers(3), "hyperexp:cv=2"),
        (1.5, Soft(0.3), "hyperexp:cv=2"),
        (1.6, Table((1.0, 1.8, 2.4)), "hyperexp:cv=2"),
    ],
)
def test_every_speed_has_the_mean_response_of_its_birth_and_death_chain(lam, speed, law):
    mean, se = mean_response(lambda: ProcessorSharing(speed=speed), lam, law)
    assert abs(mean - birth_and_death(lam, Curve(speed, 1.0))) <= 4 * se


@pytest.mark.parametrize("limit", [3, 10])
def test_a_limit_keeps_a_retrograde_pool_where_it_is_fast(limit):
    """Without a limit the throughput 8/n falls below the arrivals at 14 requests, and the pool does not recover."""
    speed = Retrograde(1, 8)
    mean, se = mean_response(lambda: ProcessorSharing(limit=limit, speed=speed), 0.6, "exp")
    assert abs(mean - birth_and_death(0.6, Curve(speed, 1.0, limit))) <= 4 * se


def test_on_an_infinite_server_every_request_takes_its_own_work():
    jobs = traffic(1, 5.0, "hyperexp:cv=2", 20_000)
    ends, mean = run(ProcessorSharing(math.inf), jobs)
    assert max(abs(end - at - work) for end, (at, work) in zip(ends, jobs, strict=True)) < 1e-8
    assert mean == pytest.approx(sum(work for _, work in jobs) / max(ends), rel=1e-9)


def test_a_limit_changes_nothing_for_exponential_work():
    """Limited processor sharing of one server: the chain of M/M/1, 1/(μ − λ)."""
    mean, se = mean_response(lambda: ProcessorSharing(limit=3), 0.6, "exp")
    assert abs(mean - 2.5) <= 4 * se


@pytest.mark.parametrize("limit", [1, 4])
def test_as_many_servers_as_the_limit_serve_first_come_first_served(limit):
    jobs = traffic(3, 0.8 * limit, "hyperexp:cv=2", 3000)
    station = Station(limit)
    expected = [station.admit(at, work) for at, work in jobs]
    for pool in (ProcessorSharing(limit, limit=limit), ProcessorSharing(math.inf, limit=limit)):
        assert run(pool, jobs)[0] == pytest.approx(expected, rel=1e-9)


class Plain:
    """The same model without virtual time: the work left of each request, O(n) an event."""

    def __init__(self, speed, limit):
        self.speed, self.limit, self.at = speed, limit, 0.0
        self.left, self.front = {}, deque()

    def settle(self):
        while self.front and len(self.left) < self.limit:
            key, work = self.front.popleft()
            self.left[key] = work

    def until(self, now):
        """Work until then; returns (end, key) of those that ended."""
        ended = []
        while self.left:
            speed = self.speed(len(self.left))
            key = min(self.left, key=self.left.get)
            end = self.at + self.left[key] / speed
            step = min(end, now) - self.at
            self.left = {each: left - step * speed for each, left in self.left.items()}
            self.at += step
            if end > now:
                break
            del self.left[key]
            ended.append((end, key))
            self.settle()
        self.at = now
        return ended


@pytest.mark.parametrize("seed", range(8))
def test_joins_departures_and_changes_in_any_order_agree_with_a_plain_program(seed):
    dice = Random(seed)
    speeds = [Servers(2), Soft(0.2), Retrograde(2, 4), lambda n: 0.25 / n]
    pool, plain, now, inside = ProcessorSharing(limit=5, speed=speeds[0]), Plain(speeds[0], 5), 0.0, set()
    for key in range(600):
        now += dice.expovariate(1.0)
        found = []
        while pool.next_end() <= now:
            found.append((pool.next_end(), pool.pop(pool.next_end())))
        expected = plain.until(now)
        assert [each for _, each in found] == [each for _, each in expected]
        assert [end for end, _ in found] == pytest.approx([end for end, _ in expected], rel=1e-9)
        inside -= {each for _, each in found}
        choice = dice.random()
        if choice < 0.15 and inside:
            gone = dice.choice(sorted(inside))
            pool.leave(now, gone)
            inside.discard(gone)
            plain.left.pop(gone, None)
            plain.front = deque(each for each in plain.front if each[0] != gone)
        elif choice < 0.25:
            plain.speed = dice.choice(speeds)
            pool.change(now, plain.speed)
        elif choice < 0.3:
            plain.limit = dice.randint(1, 8)
            pool.change_limit(now, plain.limit)
        else:
            work = dice.expovariate(0.8)
            pool.join(now, key, work)
            plain.front.append((key, work))
            inside.add(key)
        plain.settle()
        assert (len(pool), pool.in_service, pool.waiting) == (len(inside), len(plain.left), len(plain.front))


def test_requests_that_leave_take_no_memory():
    pool = ProcessorSharing()
    pool.join(0.0, "first", 1e9)
    for key in range(1000):
        pool.join(0.0, key, 1e9 + key)
        pool.leave(0.0, key)
    assert len(pool) == 1
    assert len(pool._heap) < 20


def test_a_pool_that_stands_still_has_no_next_end_and_goes_on_where_it_was():
    pool = ProcessorSharing()
    pool.join(0.0, "a", 2.0)
    pool.change(1.0, lambda n: 0.0)
    assert pool.next_end() == math.inf
    pool.change(11.0, Servers(1))
    assert pool.next_end() == pytest.approx(12.0)


def test_equal_ends_come_in_the_order_of_arrival():
    pool = ProcessorSharing()
    for key in "abc":
        pool.join(0.0, key, 1.0)
    assert [(pool.next_end(), pool.pop(pool.next_end())) for _ in "abc"] == [(3.0, "a"), (3.0, "b"), (3.0, "c")]


def filled():
    pool = ProcessorSharing()
    pool.join(1.0, "a", 2.0)
    return pool


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda: filled().join(0.5, "b", 1.0), ValueError, "an event at 0.5 is not between the last, 1,"),
        (lambda: filled().join(9.0, "b", 1.0), ValueError, "and the end 3"),
        (lambda: filled().join(1.5, "a", 1.0), ValueError, "'a' is in the pool already"),
        (lambda: filled().join(1.5, "b", -1.0), ValueError, "finite and not negative, not -1"),
        (lambda: filled().pop(2.0), ValueError, "no request ends at 2; the next end is at 3"),
        (lambda: ProcessorSharing().pop(math.inf), ValueError, "no request ends"),
        (lambda: filled().leave(2.0, "b"), KeyError, "b"),
        (lambda: ProcessorSharing(limit=0), ValueError, "limit must be at least 1, not 0"),
        (lambda: ProcessorSharing(0.5), ValueError, "servers must be at least 1, not 0.5"),
    ],
)
def test_wrong_use_is_refused(use, error, message):
    with pytest.raises(error, match=message):
        use()
