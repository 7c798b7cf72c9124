"""Limits on the size of bodies and on the number of connections."""

import pytest
import trustme

from tests.proxy.harness import eventually, front, get, handshakes, silent, status


async def test_connections_beyond_the_limit_get_a_503():
    async with front(limits={"connections": 1}) as f:
        first = await f.client()
        await first.send(get())
        await first.message()
        second = await f.client()
        assert status(await second.message()) == 503
        assert await second.ended()
        await first.send(get())
        assert status(await first.message()) == 200
        assert f.metric("lased_rejected_total", reason="connections") == 1


async def test_a_connection_counts_before_its_handshake_is_done(tmp_path):
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "pem"))
    async with front(tls={"certificate": str(tmp_path / "pem")}, limits={"connections": 3}) as f:
        silent = [await f.client() for _ in range(10)]
        await eventually(lambda: handshakes(f) == 3)
        ended = [await client.ended() for client in silent[3:]]
        assert all(ended)
        for client in silent[:3]:
            client.kill()
        await eventually(lambda: not handshakes(f))


@pytest.mark.parametrize("framing", ["Content-Length: 2000", "Transfer-Encoding: chunked"])
async def test_a_body_over_the_limit_is_refused(framing):
    async with front(silent, limits={"body_bytes": 1000}) as f:
        client = await f.client()
        await client.send(
            get("/", framing, method="POST") + (b"7d0\r\n" if "chunked" in framing else b"") + b"x" * 2000
        )
        assert status(await client.message()) == 413
        assert await client.ended()
        await f.wait_idle()


async def test_headers_of_any_size_pass_without_a_limit():
    async with front(limits={"head_bytes": 0}) as f:
        assert status(await f.ask(get("/x", "X-Long: " + "a" * 100_000))) == 200
