"""What is tried again, where, with which body, and how often at the most."""

import asyncio

import pytest

from dispatcher.proxy.retry_budget import RetryBudget
from dispatcher.settings import LiveSettings, Retry, Settings


BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"


def put(body, method="PUT"):
    return get("/x", f"Content-Length: {len(body)}", method=method) + body


async def test_by_default_an_answer_is_an_answer():
    first = Recorder(BUSY)
    async with front(first, answer_ok, policy="round_robin") as f:
        assert (await f.ask(get()))[1] == b"busy"
        assert first.bodies == [b""]
        assert f.metric("lased_retries_total", reason="503") == 0


async def test_a_status_is_tried_at_another_pool_with_the_same_body_and_counts_against_the_first():
    first, second = Recorder(BUSY), Recorder(FINE)
    async with front(first, second, policy="round_robin", retry={"on": ["503"]}) as f:
        assert (await f.ask(put(b"hello")))[1] == b"fine"
        assert (first.bodies, second.bodies) == ([b"hello"], [b"hello"])
        assert f.metric("lased_retries_total", reason="503") == 1
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="503") == 1
        assert consecutive_failures(f, "p0") == 1
        await f.wait_idle()


async def test_a_body_that_comes_in_pieces_is_replayed_whole():
    first, second = Recorder(BUSY), Recorder(FINE)

    async def early(wire):
        await wire.until(b"\r\n\r\n")
        await wire.exactly(3)
        await wire.send(BUSY)
        await wire.rest()

    async with front(early, second, policy="round_robin", retry={"on": ["503"]}) as f:
        client = await f.client()
        await client.send(put(b"abcdef")[:-3])
        await asyncio.sleep(0.05)
        await client.send(b"def")
        assert (await client.message())[1] == b"fine"
        assert second.bodies == [b"abcdef"]
        await f.wait_idle()
    assert not first.bodies


@pytest.mark.parametrize(
    ("settings", "request_", "why"),
    [
        ({"on": ["503"]}, put(b"x", "POST"), "a POST may do something"),
        ({"on": ["503"], "buffer_bytes": 10}, put(b"x" * 11), "the body is not kept"),
        ({"on": ["503"], "attempts": 1}, get(), "there is one attempt"),
        ({"on": ["503"], "budget": 0.0, "per_second": 0.0}, get(), "there is no budget"),
        ({"on": ["500", "timeout"]}, get(), "it is not asked for"),
    ],
)
async def test_what_may_not_be_tried_again_gets_the_pools_answer(settings, request_, why):
    first = Recorder(BUSY)
    async with front(first, first, policy="round_robin", retry=settings) as f:
        answer = await f.ask(request_)
        assert (status(answer), answer[1]) == (503, b"busy"), why
        assert len(first.bodies) == 1
        await f.wait_idle()


async def test_with_leave_a_post_is_tried_again_too():
    first, second = Recorder(BUSY), Recorder(FINE)
    async with front(first, second, policy="round_robin", retry={"on": ["503", "non_idempotent"]}) as f:
        assert (await f.ask(put(b"x", "POST")))[1] == b"fine"
        assert second.bodies == [b"x"]


async def test_the_last_attempt_gives_what_it_got():
    first = Recorder(BUSY)
    async with front(*[first] * 4, policy="round_robin", retry={"on": ["503"], "attempts": 3}) as f:
        assert (await f.ask(get()))[1] == b"busy"
        assert len(first.bodies) == 3
        await f.wait_idle()


async def test_nobody_else_is_there_to_try():
    first = Recorder(BUSY)
    async with front(first, retry={"on": ["503", "reset"]}) as f:
        assert (await f.ask(get()))[1] == b"busy"
        assert len(first.bodies) == 1


@pytest.mark.parametrize(("cause", "pool"), [("reset", Pieces(then="close")), ("timeout", None)])
async def test_silence_is_tried_elsewhere_if_that_is_asked_for(cause, pool):
    async def silent(wire):
        await wire.until(b"\r\n\r\n")
        await wire.rest()

    async with front(
        pool or silent, answer_ok, policy="round_robin", retry={"on": [cause]}, timeouts={"answer": 0.05}
    ) as f:
        assert (await f.ask(get("/there")))[1] == b"/there"
        assert f.metric("lased_retries_total", reason=cause) == 1
        await f.wait_idle()


async def test_a_client_that_leaves_is_not_tried_for_again():
    second = Recorder(FINE)

    async def waits(wire):
        await wire.until(b"\r\n\r\n")
        asked.set()
        await wire.rest()

    asked = asyncio.Event()
    async with front(waits, second, policy="round_robin", retry={"on": ["reset", "timeout", "503"]}) as f:
        client = await f.client()
        await client.send(get())
        await asked.wait()
        client.close()
        await f.wait_idle()
        assert not second.bodies


def test_the_budget_is_a_share_of_requests_and_so_many_a_second():
    budget = RetryBudget(LiveSettings(Settings(retry=Retry(budget=0.2, per_second=10.0))))
    granted = 0
    for i in range(10_000):  # 100 s at 100 requests a second, each of which would like a retry
        budget.earn()
        granted += budget.spend(i / 100)
    assert 0.2 * 10_000 + 10 * 100 <= granted + 1 <= 0.2 * 10_000 + 10 * 100 + 11


def test_a_long_silence_saves_up_no_more_than_ten_seconds():
    budget = RetryBudget(LiveSettings(Settings(retry=Retry(budget=0.0, per_second=10.0))))
    assert budget.spend(0.0)
    assert sum(budget.spend(1e6) for _ in range(1000)) == 100


async def test_pools_that_fail_do_not_double_the_load():
    first = Recorder(BUSY)
    async with front(first, first, policy="round_robin", retry={"on": ["503"], "budget": 0.2, "per_second": 0.0}) as f:
        client = await f.client()
        for _ in range(100):
            await client.send(get())
            assert (await client.message())[1] == b"busy"
        assert len(first.bodies) <= 121
