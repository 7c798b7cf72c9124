"""Random clients that leave, stall and pipeline, before pools that reset, stall, fail and send too much.

In the end every ticket is completed once, every count is zero, nothing is left open, and asyncio reports no error.
"""

import asyncio
import gc
import logging
from random import Random

import pytest

from tests.proxy.harness import (
    completions,
    eventually,
    front,
    get,
)

SHORT = {"head": 0.15, "keepalive": 0.15, "answer": 0.1, "idle": 0.1, "connect": 0.3}  # seconds


def moody(dice):
    async def script(wire):
        while True:
            head, _ = await wire.message()
            target = head.split(b" ")[1]
            whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(target), target)
            mood = dice.random()
            if mood < 0.6:
                await wire.send(whole)
            elif mood < 0.7:
                await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for byte in target:
                    await wire.send(b"1\r\n%c\r\n" % byte)
                await wire.send(b"0\r\n\r\n")
            elif mood < 0.76:
                await wire.send(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
            elif mood < 0.82:
                await wire.send(whole[: dice.randrange(len(whole))])
                wire.reset()
                return
            elif mood < 0.88:
                await wire.send(whole + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
            elif mood < 0.94:
                return
            else:
                await asyncio.sleep(1.0)

    return script


async def moody_client(f, dice, name, wrong):
    client = await f.client()
    for i in range(dice.randrange(1, 6)):
        target = f"/{name}-{i}"
        mood = dice.random()
        raw = get(target, "Content-Length: 300", method="PUT") + b"b" * 300 if mood < 0.3 else get(target)
        if mood > 0.9:
            raw = raw[: dice.randrange(len(raw))]
        times = 3 if 0.5 < mood < 0.6 else 1
        await client.send(raw * times)
        if 0.6 < mood < 0.7:
            client.reset()
            return
        if 0.7 < mood < 0.75:
            client.close()
            return
        for _ in range(times if mood <= 0.9 else 0):
            head, body = await client.message()
            if head.startswith(b"HTTP/1.1 200") and body != target.encode():
                wrong.append((target, body))
    client.close()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_whatever_happens_nothing_is_left(seed, caplog):
    dice, wrong = Random(seed), []
    loop = asyncio.get_running_loop()
    noise = []
    loop.set_exception_handler(lambda _, context: noise.append(context))
    health = {"passive_failures": 3, "ejection": 0.1}
    pools = [moody(dice) for _ in range(3)]
    with caplog.at_level(logging.WARNING, logger="asyncio"):
        async with front(*pools, policy="lased", timeouts=SHORT, health=health) as f:
            completed = completions(f)

            async def lives(n):
                for i in range(12):
                    try:
                        await moody_client(f, dice, f"{n}-{i}", wrong)
                    except (EOFError, ConnectionError, TimeoutError):
                        pass  # it was refused, cut, or left without an answer: that is its life

            await asyncio.gather(*(lives(n) for n in range(20)))
            for client in f.clients:
                client.kill()
            await f.wait_idle()
            await eventually(lambda: repr(f.service.listener) == "<Listener 0 connections>")
            tickets = [done.ticket for done in completed]
            assert len(tickets) == f.service.decision_log.count == len(set(tickets))
            assert not any(ticket.is_open for ticket in tickets)
            assert f.metric("lased_internal_errors_total") == 0
            assert f.metric("lased_policy_errors_total") == 0
        gc.collect()
        await asyncio.sleep(0)
    assert wrong == []
    ours = [context for context in noise if "tests" not in str(context)]
    assert ours == []
    assert not [r for r in caplog.records if "never retrieved" in r.getMessage()]
