"""The time of the first byte of a pool's response, as it reaches the policy."""

import asyncio

from dispatcher.core.policy import Recorder

GET = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"
PAUSE = 0.15  # seconds


class Ends(Recorder):
    def __init__(self):
        self.done = []

    def completed(self, done, fleet):
        self.done.append(done)


def listen(f):
    ends = Ends()
    f.service.router._recorders += (ends,)
    return ends.done


async def test_it_is_the_head_of_the_response_and_not_its_end():
    async def script(pool):
        await pool.message()
        await pool.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
        await asyncio.sleep(PAUSE)
        await pool.send(b"k")

    async with front(script, policy="traefik_leasttime") as f:
        done = listen(f)
        assert (await f.ask(GET))[1] == b"ok"
        await f.wait_idle()
        (end,) = done
        assert end.ticket.routed_at < end.first_byte_at
        assert end.finished_at - end.first_byte_at > 0.9 * PAUSE


async def test_there_is_none_without_a_response():
    async def script(pool):
        await pool.message()
        pool.kill()

    async with front(script, policy="traefik_leasttime") as f:
        done = listen(f)
        assert (await f.ask(GET))[0].startswith(b"HTTP/1.1 502")
        await f.wait_idle()
        assert {end.first_byte_at for end in done} == {None}
        assert f.metric("lased_policy_errors_total") == 0
