"""A Redis of our own, on a socket in a folder, that can be killed and started again."""

import contextlib
import signal
import subprocess
import time


class Redis:
    """folder: where its socket is."""

    def __init__(self, folder):
        self.path = folder / "redis.sock"
        self.url = f"unix://{self.path}"
        self.folder, self.process = folder, None

    def start(self):
        words = ["--port", "0", "--unixsocket", self.path, "--dir", self.folder, "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(["redis-server", *words], stdout=subprocess.DEVNULL)
        for _ in range(200):
            with contextlib.suppress(subprocess.CalledProcessError):
                if self.ask("PING") == "PONG":
                    return
            time.sleep(0.02)
        raise AssertionError("redis-server did not start")

    def ask(self, *words):
        done = subprocess.run(["redis-cli", "-s", self.path, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)
