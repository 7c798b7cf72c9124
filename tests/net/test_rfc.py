"""What RFC 9110 asks of a proxy beyond forwarding: loops, hops, TRACE, trailers, 426."""

import pytest



def via_of(head):
    (via,) = (line for line in header_lines(head) if line.lower().startswith(b"via:"))
    return via


async def test_x05_a_request_that_comes_round_again_is_refused_and_counted():
    script = Recorder()
    async with front(script) as f:
        await f.ask(get())
        via = via_of(script.requests[0][0])
        answer = await f.ask(get("/", via.decode() + ", 1.0 another (comment)"))
        assert status(answer) == 508
        assert f.metric("lased_rejected_total", reason="loop") == 1
        answer = await f.ask(get("/", "Via: 1.1 lased-dispatcher, 1.1 00000000.lased-dispatcher"))
        assert status(answer) == 200, "another dispatcher in the way is no loop"
        await f.wait_idle()
    assert len(script.requests) == 2


async def test_x02_trace_is_refused_and_shows_nothing():
    script = Recorder()
    async with front(script) as f:
        for fields in ((), ("Max-Forwards: 0",)):
            answer = await f.ask(get("/", "Cookie: secret", *fields, method="TRACE"))
            assert status(answer) == 405
            assert b"Allow: GET, HEAD" in answer[0]
            assert b"secret" not in answer[0] + answer[1]
    assert script.requests == []


async def test_x03_max_forwards_is_counted_down_for_options_alone():
    script = Recorder()
    async with front(script) as f:
        await f.ask(get("/", "Max-Forwards: 5", method="OPTIONS"))
        await f.ask(get("/", "Max-Forwards: 5"))
        await f.ask(get("/", "Max-Forwards: five", method="OPTIONS"))
        answer = await f.ask(get("/", "Max-Forwards: 0", method="OPTIONS"))
        assert status(answer) == 200
        await f.wait_idle()
    seen = [line for head, _ in script.requests for line in header_lines(head) if line.startswith(b"Max-Forwards")]
    assert seen == [b"Max-Forwards: 4", b"Max-Forwards: 5", b"Max-Forwards: five"]


TRAILED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\nContent-Length: 9\r\n\r\n"


@pytest.mark.parametrize(("fields", "end"), [
    (("TE: trailers", "Connection: TE"), b"0\r\nX-Sum: 1\r\n\r\n"),
    ((), b"0\r\n\r\n"),
])  # fmt: skip
async def test_s07_trailers_pass_to_who_asks_for_them_without_what_may_not_stand_there(fields, end):
    script = Recorder(TRAILED)
    async with front(script) as f:
        client = await f.client()
        await client.send(get("/", *fields))
        answer = await client.until(end)
        assert answer.endswith(b"2\r\nok\r\n" + end)
        await f.wait_idle()
    asked = [line for line in header_lines(script.requests[0][0]) if line.startswith((b"TE:", b"Connection:"))]
    assert asked == ([b"TE: trailers", b"Connection: TE"] if fields else [])


async def test_w06_a_426_says_to_what_to_upgrade():
    script = Recorder(
        b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n"
    )
    async with front(script) as f:
        head, _ = await f.ask(get())
        assert b"Upgrade: h2c" in header_lines(head)
        assert b"Connection: upgrade" in header_lines(head)
        head, _ = await f.ask(get("/", "Connection: close"))
        assert b"Connection: close, upgrade" in header_lines(head)
