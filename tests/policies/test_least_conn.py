"""`least_conn`: cases worked by hand."""

from dispatcher.core.types import PoolSpec
from tests.policies.road import Road

SLOW, FAST = PoolSpec("slow", guess=1.0), PoolSpec("fast", guess=3.0)


def chosen(road, n):
    return [road.send().pool.id for _ in range(n)]


def test_the_least_requests_per_weight_wins_with_the_new_one_counted():
    # 1/3 against 1/1, 2/3, then 3/3 ties with 1/1 and the first pool of the fleet wins; 3/3, 4/3, 5/3 before 2/1
    assert chosen(Road("least_conn", [SLOW, FAST]), 6) == ["fast", "fast", "slow", "fast", "fast", "fast"]


def test_ties_go_by_the_option():
    assert chosen(Road("least_conn", [SLOW, FAST], ties="fastest"), 3) == ["fast", "fast", "fast"]
    assert chosen(Road("least_conn", [FAST, SLOW], ties="slowest"), 3) == ["fast", "fast", "slow"]


def test_servers_multiply_the_weight():
    road = Road("least_conn", [PoolSpec("one"), PoolSpec("wide", servers=3)])
    assert chosen(road, 4) == ["wide", "wide", "one", "wide"]


def test_a_fast_pool_in_use_goes_before_a_slow_idle_one():
    ours, nginx, haproxy = (
        Road(name, [SLOW, FAST]) for name in ("least_conn", "nginx_least_conn", "haproxy_leastconn")
    )
    assert chosen(ours, 2) == ["fast", "fast"]
    assert chosen(nginx, 2) == ["fast", "slow"]
    assert chosen(haproxy, 2) == ["slow", "fast"]
