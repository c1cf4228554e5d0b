"""The demo's brokers, as processes: two, each the other's backup, where there is an etcd to agree through;
else a single one, which needs nothing. Started and asked by the director; ended by it with all its processes.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil

_ETCD: Final = "etcd"
_ETCD_SECONDS: Final = 20.0

Start = Callable[..., subprocess.Popen[str]]
"""Starts a named process: start(name, *command)."""


class NotStarted(Exception):
    """The process of this name did not come up."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Brokers:
    def __init__(self, start: Start, directory: Path, shm: Path) -> None:
        self._start = start
        self._directory = directory
        self._shm = shm
        self._etcd = shutil.which(_ETCD)
        numbers = (1, 2) if self._etcd else (1,)
        self._kafka = {number: free_address() for number in numbers}
        self._http = {number: free_address() for number in numbers}
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._measured: list[psutil.Process] = []

    @property
    def setting(self) -> str:
        """What there is, in a line for the screen."""
        if self._etcd:
            return "two brokers, each the other's backup; etcd keeps who leads"
        return "a single broker: etcd is not installed, so there is no backup"

    @property
    def servers(self) -> str:
        return ",".join(self._kafka.values())

    @property
    def address(self) -> str:
        """One of them, for whoever asks it for the others."""
        return self._kafka[1]

    def start(self) -> None:
        """Raises NotStarted."""
        options: dict[int, tuple[str, ...]] = dict.fromkeys(self._kafka, ())
        if self._etcd:
            endpoint = self._start_etcd(self._etcd)
            for number in options:
                listen = ("--replication-listen", free_address())
                options[number] = ("--broker-id", str(number), "--cluster", endpoint, *listen)
        for number, more in options.items():
            self.processes[f"broker-{number}"] = self._start(
                f"broker-{number}",
                *(sys.executable, "-m", "penstock.cli.main", "broker"),
                *("--listen", self._kafka[number], "--http", self._http[number]),
                *("--data-dir", str(self._directory / f"data-{number}"), "--shm-dir", str(self._shm)),
                *("--memory", "2GiB", *more),
            )
        for name, process in self.processes.items():
            assert process.stdout is not None
            if name != _ETCD and not process.stdout.readline().startswith("ready:"):
                raise NotStarted(name)
        self._measured = [psutil.Process(p.pid) for name, p in self.processes.items() if name != _ETCD]

    def _start_etcd(self, program: str) -> str:
        client, peer = f"http://{free_address()}", f"http://{free_address()}"
        self.processes[_ETCD] = self._start(
            _ETCD,
            *(program, "--name", "demo", "--data-dir", str(self._directory / _ETCD), "--unsafe-no-fsync"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"demo={peer}"),
        )
        deadline = time.monotonic() + _ETCD_SECONDS
        while time.monotonic() < deadline and self.processes[_ETCD].poll() is None:
            try:
                with urllib.request.urlopen(f"{client}/health", timeout=1) as answer:
                    if b"true" in answer.read():
                        return client
            except OSError:
                time.sleep(0.05)
        raise NotStarted(_ETCD)

    def cpu(self) -> float:
        """Seconds that the brokers have spent."""
        return sum(times.user + times.system for times in (each.cpu_times() for each in self._measured))

    def topics(self) -> set[str]:
        return {topic["topic"] for topic in self._get(1, "/v1/topics")}

    def ends(self, topic: str) -> dict[int, int]:
        """Where each partition ends for readers: as its leader says, who knows of most."""
        ends: dict[int, int] = {}
        for number in self._http:
            for entry in self._get(number, f"/v1/topics/{topic}")["partitions"]:
                partition = entry["partition"]
                ends[partition] = max(ends.get(partition, 0), entry["high_watermark"] or 0)
        return ends

    def fetches(self) -> int:
        pattern = r'^penstock_request_seconds_count\{[^}]*api="Fetch"[^}]*\} ([0-9.e+]+)'
        found = 0
        for number in self._http:
            text = self._open(number, "/metrics").decode()
            counts = re.findall(pattern, text, re.MULTILINE | re.IGNORECASE)
            found += sum(int(float(count)) for count in counts)
        return found

    def _get(self, number: int, path: str) -> Any:
        return json.loads(self._open(number, path))

    def _open(self, number: int, path: str) -> bytes:
        with urllib.request.urlopen(f"http://{self._http[number]}{path}", timeout=10) as response:
            body: bytes = response.read()
            return body


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
