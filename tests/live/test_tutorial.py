"""The tutorial works as it stands: its commands are run, in order, in one shell, on ports that are free."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proxy.harness import front

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "tutorial.md").read_text()
PORTS = ("9001", "9002", "8080", "9090")


def free_ports(n):
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [str(server.getsockname()[1]) for server in taken]
    for server in taken:
        server.close()
    return ports


def script():
    """The blocks as one script: shorter, with free ports, with this interpreter's commands, each echoed to stderr."""
    text = "\n".join(re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
    for known, free in zip(PORTS, free_ports(len(PORTS)), strict=True):
        text = text.replace(f":{known}", f":{free}")
        if known == "9090":
            text = text.replace("top --once", f"top --once --admin http://127.0.0.1:{free}")
    text = text.replace("make setup\n", "").replace("--duration 60", "--duration 8")
    return text.replace(".venv/bin/", f"{Path(sys.executable).parent}/")


@pytest.mark.slow
def test_every_command_of_the_tutorial_works(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    command = ["bash", "-e", "-o", "pipefail", "-c", script()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):  # all have ended, as they should
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode in (0, 143), errors
    assert "ok\n" in output
    assert re.search(r"small\s+up", output), "top"
    assert re.search(r"lased_shadow_disagreements_total\{policy=\"greedy\"\} \d", output)
    assert '"name": "optimistic"' in output
    assert '"drained": true' in output
    assert list(tmp_path.iterdir()) == []


async def test_the_commands_for_a_running_service_work(tmp_path):
    text = (ROOT / "docs" / "in-production.md").read_text()
    (block,) = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    async with front() as f:
        script = block.replace("curl ", "curl --fail-with-body -s ").replace(
            "localhost:9090", f"127.0.0.1:{f.admin[1]}"
        )
        process = await asyncio.create_subprocess_exec(
            "bash", "-e", "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0, output.decode()
        assert f.service.config.policy.name == "optimistic"
        assert [pool.name for pool in f.service.config.pools] == ["p0"], "the third came and went"


def test_links_of_the_docs_lead_somewhere():
    for page in (ROOT / "docs").glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"
