"""The turns of the state machine that need an unlucky moment: connections that close, fill or fail at the wrong one."""

import asyncio
import socket
import threading

from tests.proxy.harness import WAIT, Pieces, Recorder, answers, eventually, front, get, pouring, status

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
UPGRADE = ("Connection: Upgrade", "Upgrade: websocket")


class ClosingPool:
    """A pool in a thread of its own that accepts each connection and closes it at once."""

    def __init__(self):
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=100)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        try:
            while True:
                self.listening.accept()[0].close()
        except OSError:
            pass  # the listening socket is closed

    def __enter__(self):
        return f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    def __exit__(self, *_):
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()


async def small_client(f):
    """Return a client whose kernel takes few bytes, and the dispatcher's connection to it, whose kernel does, too."""
    connected = socket.socket()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connected.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connected, f.address)
    await eventually(lambda: f.service.listener._connections)
    (connection,) = f.service.listener._connections
    connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    return connected, connection


async def test_a_pool_that_accepts_and_closes_is_ejected():
    """The close may arrive before the request is sent. On a new connection that is a failure all the same."""
    with ClosingPool() as url:
        async with front(Recorder(), policy="round_robin", retry={"on": []}) as f:
            f.service.reloader.amend(
                pools=[
                    {"name": "closing", "url": url, "true_rate": 1.0},
                    {"name": "p0", "url": f"http://127.0.0.1:{f.pools[0].port}", "true_rate": 1.0},
                ]
            )
            for _ in range(30):
                await f.ask(get())
            assert f.service.health.verdict("closing") == "ejected"
            assert f.metric("lased_upstream_errors_total", pool="closing", reason="stale") == 0
            await f.wait_idle()


async def test_a_log_that_fails_does_not_destroy_the_response():
    body = b"x" * 400_000
    async with front(answers(200, body)) as f:
        f.service.context.on_finished = lambda _: 1 / 0
        client = await f.begin(get())
        await eventually(lambda: f.metric("lased_internal_errors_total") == 1)
        head, received = await client.message()
        assert status((head,)) == 200
        assert received == body
        await f.wait_idle()


async def test_a_client_that_leaves_just_before_101_is_no_failure_of_its_pool():
    client = socket.socket()

    async def script(wire):
        await wire.until(b"\r\n\r\n")
        client.shutdown(socket.SHUT_RDWR)  # both arrive in the same turn of the event loop, in this order
        wire.writer.write(SWITCH)
        await wire.rest()

    async with front(script) as f:
        client.connect(f.address)
        client.sendall(get("/ws", *UPGRADE))
        await eventually(lambda: f.pools[0].connections)
        await f.wait_idle()
        client.close()
        await eventually(lambda: f.metric("lased_client_aborts_total") == 1)
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="protocol") == 0
        assert f.metric("lased_internal_errors_total") == 0


async def test_a_slow_client_slows_the_second_pool_down_too():
    """Interim responses of the first pool fill the client. The second pool must not be read into memory."""
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: <%s>\r\n\r\n" % (b"x" * 9000)
    rejects = Recorder(hint * 5 + b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
    pours = pouring(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 << 20))
    async with front(rejects, pours, policy="round_robin", retry={"on": ["503"]}) as f:
        client, connection = await small_client(f)
        connection.transport.set_write_buffer_limits(high=1024)
        await asyncio.get_running_loop().sock_sendall(client, get())
        await eventually(lambda: f.pools[1].connections and f.in_flight == [0, 1])
        await asyncio.sleep(0.3)
        assert not connection.is_writable
        assert connection.transport.get_write_buffer_size() < 1 << 20
        client.close()
        await f.wait_idle()


async def test_a_client_that_stops_to_read_near_the_end_is_closed():
    """The dispatcher closes while its buffer is full, and the event loop calls the connection writable after that."""
    pieces = [b"x" * 10_000] * 20
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % sum(map(len, pieces))
    async with front(Pieces(head, *pieces), timeouts={"idle": 0.2}) as f:
        client, connection = await small_client(f)
        connection.transport.set_write_buffer_limits(high=1 << 20)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, get("/x", "Connection: close"))
        await eventually(lambda: connection.transport.is_closing())
        connection.transport.set_write_buffer_limits(high=100_000, low=50_000)
        assert not connection.is_writable
        while not connection.is_writable:
            assert await loop.sock_recv(client, 1024)
            await asyncio.sleep(0)
        assert connection.transport.get_write_buffer_size()
        await eventually(lambda: not f.service.listener._connections)
        client.close()


async def test_a_client_that_ends_its_side_and_does_not_read_is_closed():
    async with front(answers(200, b"x" * 50_000), timeouts={"idle": 0.2, "keepalive": 0.2}) as f:
        client, connection = await small_client(f)
        await asyncio.get_running_loop().sock_sendall(client, get())
        await eventually(lambda: connection.transport.get_write_buffer_size())
        await f.wait_idle()
        client.shutdown(socket.SHUT_WR)
        await eventually(lambda: not f.service.listener._connections)
        client.close()


async def test_a_pipelined_body_has_a_deadline_without_one_for_idle_connections():
    async with front(timeouts={"keepalive": 0.0, "idle": 0.1}) as f:
        client = await f.begin(get("/1") + get("/2", "Content-Length: 10", method="POST") + b"half")
        assert (await client.message())[1] == b"/1"
        head, _ = await asyncio.wait_for(client.message(), WAIT)
        assert status((head,)) == 408
        await f.wait_idle()
