"""The load generator's client against servers with scripted responses: what counts as a response, and what does not."""

import asyncio
import contextlib
import ssl

import numpy as np
import pytest
import trustme

from loadgen.attack.driver import Attack, Limits
from loadgen.attack.records import ERRORS, Records
from loadgen.attack.targets import Request

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Pool: a\r\n\r\nok"


class Server:
    """Sends `answer` for each request head that it reads. close: after the answer. heads: those that it has read."""

    def __init__(self, answer, close=False, reset=False, context=None):
        self.answer, self.close, self.reset, self.context = answer, close, reset, context
        self.heads, self.connections, self.tasks = [], 0, set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=self.context)
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self.context else ''}://127.0.0.1:{self.port}/"
        return self

    async def __aexit__(self, *error):
        self.server.close()
        for task in self.tasks:
            task.cancel()

    async def serve(self, reader, writer):
        self.connections += 1
        self.tasks.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                for line in head.split(b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        await reader.readexactly(int(line.split(b":")[1]))
                answer = self.answer(len(self.heads), self.connections) if callable(self.answer) else self.answer
                if answer is None:
                    break
                for part in answer if isinstance(answer, list) else [answer]:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                if self.close:
                    break
        if self.reset:
            writer.transport.abort()
        writer.close()


async def sent(request, n=3, **limits):
    """n requests, one after the other; the records and what it took."""
    records = Records(np.arange(n) * 0.03)
    attack = Attack(request, records, Limits(**({"timeout": 2.0} | limits)))
    await attack.run()
    assert attack.in_flight == 0
    assert attack.effort.sent == attack.effort.finished
    busy = np.nansum(np.where(np.isnan(records.done), attack.effort.elapsed, records.done) - records.sent)
    assert attack.effort.busy == pytest.approx(busy, rel=0.02, abs=1e-3), "counting and stamps agree"
    return records, attack.effort


GOOD = {
    "of a known length": OK,
    "byte by byte": [bytes([byte]) for byte in OK],
    "in chunks with trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n",
    "after others of 1xx": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK,
    "without a body": b"HTTP/1.1 204 No Content\r\n\r\n",
    "unchanged": b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n",
    "large": b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000,
}


@pytest.mark.parametrize("name", GOOD)
async def test_an_answer(name):
    async with Server(GOOD[name]) as server:
        records, effort = await sent(server.url)
    assert records.status.tolist() == [{"without a body": 204, "unchanged": 304}.get(name, 200)] * 3
    assert records.completed.all()
    assert effort.received >= 3 * len(b"".join(GOOD[name]) if isinstance(GOOD[name], list) else GOOD[name])
    assert (server.connections, effort.opened) == (1, 1), "it is kept alive"
    assert not records.error.any()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nuntil the end",
        b"HTTP/1.0 200 OK\r\nX-Pool: old\r\n\r\nold",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK.replace(b"\r\nX", b"\r\nConnection: close\r\nX"),
    ],
)
async def test_an_answer_that_ends_the_connection(answer):
    async with Server(answer, close=True) as server:
        records, effort = await sent(server.url)
    assert records.status.tolist() == [200] * 3
    assert server.connections == effort.opened == 3
    assert effort.resent == 0


async def test_head_has_no_body_and_keeps_its_connection():
    async with Server(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n") as server:
        records, effort = await sent(Request((server.url,), "HEAD"))
    assert records.status.tolist() == [200] * 3
    assert effort.opened == 1


BAD = {
    "a status that is none": (b"HTTP/1.1 000 Odd\r\nContent-Length: 0\r\n\r\n", False, "bad answer"),
    "garbage": (b"hello\r\n\r\n", False, "bad answer"),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-", True, "closed"),
    "half a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", True, "closed"),
    "half of the chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", True, "closed"),
    "nothing": (b"", True, "closed"),
    "silence": (b"", False, "timed out"),
    "another protocol": (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", False, "bad answer"),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_no_answer(name):
    answer, close, error = BAD[name]
    async with Server(answer, close=close) as server:
        records, _ = await sent(server.url, timeout=0.2)
    assert records.status.tolist() == [0] * 3
    assert [ERRORS[code] for code in records.error] == [error] * 3


async def test_a_reset_and_a_refusal_have_names():
    async with Server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", close=True, reset=True) as server:
        records, _ = await sent(server.url)
        assert {ERRORS[code] for code in records.error} <= {"reset", "closed"}
    records, _ = await sent(server.url)
    assert [ERRORS[code] for code in records.error] == ["refused"] * 3


async def test_a_kept_connection_that_the_server_has_closed_costs_no_response():
    """The second request on each connection meets a close instead of an answer: RFC 9112, section 9.3.1."""
    turns = {}

    def answer(_, connection):
        turns[connection] = turns.get(connection, 0) + 1
        return OK if turns[connection] == 1 else None

    async with Server(answer) as server:
        records, effort = await sent(server.url, n=5)
        assert records.completed.all()
        assert effort.resent >= 1
        turns.clear()
        posted, effort = await sent(Request((server.url,), "POST", body=b"x"), n=2)
    assert posted.status.tolist() == [200, 0], "what may have been done is not done again"
    assert (ERRORS[posted.error[1]], effort.resent) == ("closed", 0)


async def test_more_than_was_asked_for_ends_the_connection_and_confuses_no_other_request():
    async with Server(lambda n, _: OK + OK.replace(b"200 OK", b"500 No") if n == 1 else OK) as server:
        records, effort = await sent(server.url)
    assert records.status.tolist() == [200] * 3
    assert effort.opened == 2


@pytest.mark.parametrize("stray", [b"HTTP/1.1 500 No\r\nContent-Length: 3\r\n", b"HTTP/1.1 200 OK\r\nContent-", b"x"])
async def test_part_of_an_answer_too_many_belongs_to_no_request(stray):
    async with Server(lambda n, _: OK + stray if n % 2 else OK) as server:
        records, _ = await sent(server.url, n=6)
    assert records.status.tolist() == [200] * 6


@pytest.mark.parametrize("keepalive", [True, False])
async def test_an_answer_before_the_body_was_read_is_an_answer_and_frees_its_connection(keepalive):
    ended, writers = asyncio.Event(), []

    async def early(reader, writer):
        writers.append(writer)
        await reader.readexactly(100)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await ended.wait()

    server = await asyncio.start_server(early, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    request = Request((url,), "POST", body=bytes(20_000_000), keepalive=keepalive)
    records, effort = await sent(request, n=4, timeout=1.0)
    ended.set()
    for writer in writers:
        writer.transport.abort()
    server.close()
    await asyncio.sleep(0)
    assert records.status.tolist() == [413] * 4
    assert effort.opened == 4


async def test_what_closes_is_not_taken_again():
    """The answer and the end of the connection come together, and the next request is due in the same breath."""
    async with Server(OK, close=True) as server:
        records, effort = await sent(Request((server.url,), "POST", body=b"x"), n=20)
        assert records.completed.all()
    assert effort.opened == 20


async def test_bodies_weights_and_headers_arrive():
    async with Server(OK) as one, Server(OK) as other:
        request = Request((one.url + "a?b=1", other.url), "POST", (("X-Trace", "7"),), sizes=True)
        records = Records(np.arange(4) * 0.02)
        records.target[:], records.body[:] = [0, 1, 0, 1], [0, 10, 70_000, 3]
        await Attack(request, records).run()
    assert records.completed.all()
    assert [head.split(b"\r\n")[0] for head in one.heads] == [b"POST /a?b=1 HTTP/1.1"] * 2
    assert all(b"X-Trace: 7\r\n" in head for head in one.heads + other.heads)
    assert b"Content-Length: 70000\r\n" in one.heads[1]
    assert records.pools == ["a"] * 4


async def test_numbers_arrive_in_the_order_of_the_plan():
    async with Server(OK) as server:
        await Attack(Request((server.url,), number="X-Number"), Records(np.arange(3) / 50)).run()
    assert [int(head.split(b"X-Number: ")[1].split(b"\r\n")[0]) for head in server.heads] == [0, 1, 2]


async def test_without_keep_alive_every_request_has_its_connection():
    async with Server(OK, close=True) as server:
        records, effort = await sent(Request((server.url,), keepalive=False))
    assert records.completed.all()
    assert all(b"Connection: close\r\n" in head for head in server.heads)
    assert effort.opened == 3


async def test_a_cap_drops_what_is_due_and_counts_it():
    async with Server(b"") as server:
        records, effort = await sent(server.url, n=6, timeout=0.5, max_in_flight=2)
    assert [ERRORS[code] for code in records.error] == ["timed out"] * 2 + ["dropped"] * 4
    assert effort.sent == 2
    assert np.isnan(records.sent[2:]).all()


async def test_the_drain_is_bounded_and_what_is_open_then_is_unfinished():
    async with Server(b"") as server:
        records, effort = await sent(server.url, timeout=30.0, drain=0.1)
    assert [ERRORS[code] for code in records.error] == ["unfinished"] * 3
    assert np.isnan(records.done).all()
    assert effort.elapsed < 1.0


async def test_time_outs_are_in_time():
    async with Server(b"") as server:
        records, _ = await sent(server.url, n=20, timeout=0.1)
    spent = records.done - records.sent
    assert np.all(spent >= 0.1)
    assert np.median(spent) < 0.15


async def test_https_with_and_without_a_good_certificate(tmp_path):
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with Server(OK, context=context) as server:
        records, _ = await sent(Request((server.url,), authority=str(tmp_path / "ca.pem")))
        assert records.completed.all()
        records, _ = await sent(Request((server.url,), verify=False))
        assert records.completed.all()
        records, _ = await sent(server.url)
        assert [ERRORS[code] for code in records.error] == ["TLS"] * 3


async def test_a_name_without_an_address_is_reported_before_anything_is_sent():
    with pytest.raises(OSError, match=r"."):
        await Attack("http://no-such-host.invalid/", Records(np.zeros(1))).run()
