"""Unix sockets that other processes left, and sockets from systemd."""

import os
import socket
import subprocess
import sys

import pytest

from dispatcher.errors import StartError
from dispatcher.platform.sockets import Address, inherited, listen_on


def test_a_socket_whose_backlog_is_full_is_alive(tmp_path):
    code = f"from dispatcher.platform.sockets import *; listen_on('listen', Address(path={str(tmp_path / 's')!r}), 5)"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(tmp_path / "s"))
        live.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(str(tmp_path / "s"))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
        assert "in use by another program" in done.stderr
        with pytest.raises(StartError, match="in use"):
            listen_on("listen", Address(path=str(tmp_path / "s")), 5)
        for each in waiting:
            each.close()


def test_the_file_of_a_dead_process_is_replaced(tmp_path):
    path = str(tmp_path / "x.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    (fresh,) = listen_on("listen", Address(path=path), 1)
    fresh.close()
    (tmp_path / "file").write_text("precious")
    with pytest.raises(StartError, match="in use"):
        listen_on("listen", Address(path=str(tmp_path / "file")), 1)
    assert (tmp_path / "file").read_text() == "precious"


def test_sockets_from_systemd_are_taken_by_name(tmp_path):
    code = (
        "import os; os.environ['LISTEN_PID'] = str(os.getpid())\n"
        "from dispatcher.platform.sockets import inherited, bound\n"
        "sockets = {key: [str(bound(s)) for s in there] for key, there in inherited(os.environ).items()}\n"
        "print(sockets, 'LISTEN_FDS' in os.environ)"
    )
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        ports = [each.getsockname()[1] for each in (a, b)]
        command = f'exec 3<&{a.fileno()} 4<&{b.fileno()}; exec {sys.executable} -c "$CODE"'
        done = subprocess.run(
            ["bash", "-c", command],
            pass_fds=(a.fileno(), b.fileno()),
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "LISTEN_FDS": "2", "LISTEN_FDNAMES": "http:admin", "CODE": code},
        )
    assert done.stdout == f"{{'listen': ['127.0.0.1:{ports[0]}'], 'admin': ['127.0.0.1:{ports[1]}']}} False\n"


def test_sockets_that_are_meant_for_another_process_are_left():
    assert inherited({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) == {}
    assert inherited({}) == {}
