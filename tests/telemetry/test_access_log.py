"""The access log, and the writer behind it."""

import asyncio
import json
import os
import threading

import pytest

from dispatcher.errors import StartError
from dispatcher.telemetry import writer
from dispatcher.telemetry.access_log import AccessLog
from dispatcher.telemetry.writer import LineWriter
from tests.proxy.harness import eventually, front, get


def flush(f):
    """Wait until all log lines are in the file."""
    assert f.service.access_log.writer.wait_idle()
    f.service.access_log.writer.flush()
    assert f.service.access_log.writer.wait_idle()


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_line_describes_a_request(tmp_path):
    path = tmp_path / "access.log"

    async def timed(wire):
        await wire.until(b"\r\n\r\n")
        await wire.send(b"HTTP/1.1 201 Created\r\nServer-Timing: service;dur=0.5\r\nContent-Length: 2\r\n\r\nok")

    async with front(timed, None, policy="round_robin", access_log={"path": str(path)}) as f:
        await f.ask(get("/a?b", "User-Agent: test", "traceparent: 00-aa-bb-01"))
        await f.ask(get("/a?b", "User-Agent: test", "traceparent: 00-aa-bb-01"))
        flush(f)
        first, second = entries(path)
        expected = {
            "client": "127.0.0.1",
            "method": "GET",
            "target": "/a?b",
            "host": "test",
            "version": "1.1",
            "status": 201,
            "pool": "p0",
            "phase": "exploit",
        }
        assert {key: first[key] for key in expected} == expected
        assert (first["user_agent"], first["traceparent"], first["service_time"]) == ("test", "00-aa-bb-01", 0.0005)
        assert (first["retries"], second["retries"]) == (0, 1)
        assert first["response_time"] > 0
        assert first["bytes"] > len("ok")
        assert (first["ended_by"], first["error"]) == (None, None)


async def test_a_line_names_the_side_that_ended_a_failed_request(tmp_path):
    path = tmp_path / "access.log"

    async def script(wire):
        head = await wire.until(b"\r\n\r\n")
        if b"/cut" in head:
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        elif b"/wait" in head:
            asked.set()
            await wire.rest()

    asked = asyncio.Event()
    async with front(script, access_log={"path": str(path)}) as f:
        client = await f.client()
        await client.send(get("/wait"))
        await asked.wait()
        client.close()
        await f.wait_idle()
        client = await f.client()
        await client.send(get("/cut"))
        await client.rest()
        await f.ask(get("/nothing"))
        await f.ask(b"GET / HTTP/1.1\r\n\r\n")
        await f.ask(b"GET x HTTP/1.1\r\nHost: a\r\n\r\n")
        f.service.control.drain_pool("p0", True)
        await f.ask(get("/closed"))
        await eventually(lambda: len(f.service.access_log.writer) == 6)
        flush(f)
        assert [(each["status"], each["ended_by"], each["error"]) for each in entries(path)] == [
            (499, "client", None),
            (200, "pool", "protocol"),
            (502, "pool", "reset"),
            (400, "dispatcher", "bad_request"),
            (400, "dispatcher", "bad_request"),
            (503, "dispatcher", "no_pool"),
        ]


@pytest.mark.parametrize("form", ["json", "combined"])
async def test_client_data_cannot_break_a_line(tmp_path, form):
    path = tmp_path / "access.log"
    nasty = 'a" \\ \t\xe9\x85 - - [01/Jan/2000] "GET / HTTP/1.1" 200'
    async with front(access_log={"path": str(path), "format": form}) as f:
        await f.ask(get('/x"y', f"User-Agent: {nasty}", f"Referer: {nasty}"))
        flush(f)
        (line,) = path.read_bytes().decode("ascii").splitlines()
        if form == "json":
            assert json.loads(line)["user_agent"] == nasty
        else:
            assert line.count('"') == 6, "two quotes for each of request, referer, agent"
            assert r"a\x22 \x5c \x09\xe9\x85" in line
            assert " pool=p0 phase=exploit " in line


async def test_a_reload_opens_the_file_again_after_it_was_moved(tmp_path):
    path = tmp_path / "access.log"
    async with front(access_log={"path": str(path)}) as f:
        await f.ask(get("/first"))
        path.rename(tmp_path / "access.log.1")
        f.service.reloader.reload()
        await f.ask(get("/second"))
        flush(f)
        assert [entry["target"] for entry in entries(tmp_path / "access.log.1")] == ["/first"]
        assert [entry["target"] for entry in entries(path)] == ["/second"]


def test_a_file_that_cannot_be_opened_is_an_error_at_start():
    with pytest.raises(StartError, match=r"access_log\.path: cannot write /nowhere/x: No such file"):
        AccessLog("/nowhere/x", "json")


def test_entries_beyond_the_limit_are_dropped_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MAX_WAITING_ENTRIES", 3)
    lines = LineWriter(lambda: (tmp_path / "lines").open("w"), str)
    for i in range(5):
        lines.put(i)
    assert len(lines) == 3
    with pytest.raises(OSError, match="2 lines were dropped because the file does not accept more"):
        lines.flush()
    lines.close()
    assert (tmp_path / "lines").read_text() == "0\n1\n2\n"


def test_a_failed_write_is_reported_at_the_next_flush():
    lines = LineWriter(lambda: open("/dev/full", "w"), str)  # noqa: SIM115
    lines.put("x")
    lines.flush()
    assert lines.wait_idle()
    with pytest.raises(OSError, match="No space left"):
        lines.flush()
    with pytest.raises(OSError, match="No space left"):
        lines.close()


async def test_a_reload_succeeds_although_the_disk_of_the_log_is_full():
    async with front(access_log={"path": "/dev/full"}) as f:
        await f.ask(get())
        f.service.on_sighup()
        assert f.metric("lased_config_last_reload_success") == 1
        await f.ask(get())


async def test_a_log_pipe_without_a_reader_stops_no_request(tmp_path, monkeypatch):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    async with front(access_log={"path": str(path)}) as f:
        client = await f.client()
        for _ in range(30):
            await client.send(get("/x", "User-Agent: " + "a" * 8000))
            await client.message()
        f.service.access_log.writer.flush()
        with monkeypatch.context() as impatient:
            impatient.setattr(writer, "WRITE_DEADLINE_SECONDS", 0.1)
            assert not await asyncio.to_thread(f.service.access_log.writer.wait_idle), "its thread is stuck"
        await client.send(get("/still"))
        assert (await client.message())[1] == b"/still"
        os.set_blocking(reading, True)
        threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reading, 65536), b"")], daemon=True).start()
        assert await asyncio.to_thread(f.service.access_log.writer.wait_idle)
