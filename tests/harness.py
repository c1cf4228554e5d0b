"""Real brokers as real processes, for tests: each with its own ports and directories."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]


class Violation(AssertionError):
    """A record was lost, repeated, moved or made up: a test that saw it has failed, whatever a second try
    would show (AGAIN in the Makefile)."""


def promised(kept: bool, otherwise: object) -> None:
    """For verdicts on records; what only takes too long is an assertion like any other."""
    if not kept:
        raise Violation(otherwise)


_unused: Iterator[int] = iter(range(random.SystemRandom().randrange(10_000, 25_000), 30_000))
"""Below those that the kernel gives to connections: until it is used, nobody's connection can get one."""
_claims = (Path(tempfile.gettempdir()) / f"penstock-test-ports-{os.getuid()}").open("ab")
"""A byte for each port, locked by the test process that has it."""


def free_port() -> int:
    """No other call gets the same, nor does another test process while this one lives."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of so many in a row."""
    run = 0
    for port in _unused:
        run = run + 1 if _claim(port) else 0
        if run == count:
            return port - count + 1
    raise RuntimeError("no port is free")


def _claim(port: int) -> bool:
    with socket.socket() as probe:
        try:
            fcntl.lockf(_claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class BrokerProcess:
    """`penstock broker` as a child process. Stop it, kill it, start it again on the same directories."""

    def __init__(
        self,
        directory: Path,
        *,
        memory: str = "256MiB",
        options: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        shm_dir: Path | None = None,
        host: str = "127.0.0.1",
        within: tuple[str, ...] = (),
    ) -> None:
        """`within` is a command to run it by, for example in a network namespace whose address is `host`."""
        self.directory = directory
        self.host = host
        self.within = within
        self.data_dir = directory / "data"
        self.shm_dir = shm_dir or Path(tempfile.mkdtemp(prefix="penstock-test-", dir="/dev/shm"))
        self.port = free_port()
        self.http_port = free_port()
        self.memory = memory
        self.options = options
        self.environment = environment or {}
        self.log_path = directory / "broker.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._launched_at = 0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def http(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    @property
    def memory_dir(self) -> Path:
        """Where node.ctl is."""
        return self.shm_dir / "1"

    def start(self, timeout: float = 60.0) -> Self:
        self.launch()
        return self.ready(timeout)

    def launch(self) -> None:
        """Start it, whether or not it can get ready now."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._launched_at = log.tell()
            self.process = subprocess.Popen(
                [
                    *self.within,
                    *PENSTOCK,
                    "broker",
                    "--listen",
                    self.address,
                    "--http",
                    f"{self.host}:{self.http_port}",
                    "--data-dir",
                    str(self.data_dir),
                    "--shm-dir",
                    str(self.shm_dir),
                    "--memory",
                    self.memory,
                    *self.options,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
            )

    def ready(self, timeout: float = 60.0) -> Self:
        assert self.process is not None
        deadline = time.monotonic() + timeout
        while not re.search(rb"^ready:", self.log_path.read_bytes()[self._launched_at :], re.MULTILINE):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the broker did not get ready:\n{self.log_text()}")
            time.sleep(0.01)
        return self

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self, timeout: float = 15.0) -> int:
        """A clean stop; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def lose_memory(self) -> None:
        """As after a reboot."""
        shutil.rmtree(self.shm_dir, ignore_errors=True)
        self.shm_dir.mkdir()

    def lose_disk(self) -> None:
        for path in self.data_dir.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        shutil.rmtree(self.shm_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def eventually(condition: object, timeout: float = 10.0, interval: float = 0.02) -> None:
    """Wait until condition() is true; fail with its last value otherwise."""
    assert callable(condition)
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return
        assert time.monotonic() < deadline, f"still {value!r} after {timeout} s"
        time.sleep(interval)


@contextlib.contextmanager
def background(work: object) -> Iterator[threading.Thread]:
    """Run a function on a thread for the length of a block."""
    assert callable(work)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(30)
