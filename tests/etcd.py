"""A real etcd as a child process, for tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from harness import free_port

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd (Debian: etcd-server)")


class EtcdProcess:
    def __init__(self, directory: Path, host: str = "127.0.0.1", within: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.host = host
        self.within = within
        self.port = free_port()
        self._peer = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        peer = f"http://{self.host}:{self._peer}"
        with (self.directory / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.within,
                    "etcd",
                    *("--name", "e", "--data-dir", str(self.directory / "data"), "--unsafe-no-fsync"),
                    *("--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                    *("--initial-cluster", f"e={peer}"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"},
            )
        deadline = time.monotonic() + 20
        while True:
            try:
                with urllib.request.urlopen(f"{self.endpoint}/health", timeout=1) as answer:
                    if b"true" in answer.read():
                        return self
            except OSError:
                pass
            assert self.process.poll() is None, "etcd died"
            assert time.monotonic() < deadline, "etcd did not start"
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        """As a service manager does."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(20)

    def save(self, backup: Path) -> None:
        """Copy its data; it is away meanwhile."""
        self.stop()
        shutil.copytree(self.directory / "data", backup)
        self.start()

    def restore(self, backup: Path) -> None:
        """What an operator does with an etcd that is lost."""
        self.kill()
        shutil.rmtree(self.directory / "data")
        shutil.copytree(backup, self.directory / "data")
        self.start()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
