"""Processes and directories of one run: started on the CPUs they should have, all gone at the end.

Servers get one CPU, whoever loads or reads them the others, so that neither slows the other down by
taking its time. With a single CPU, or when told so, nothing is pinned.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

PENSTOCK: Final = (sys.executable, "-m", "penstock.cli.main")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_KB: Final = 1024
_DIES_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""So that even kill -9 of the runner leaves no process."""


class ProcessFailed(Exception):
    """A process of the experiment ended, or didn't get ready; with the end of what it printed."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes of a process by kind. `shared` is tmpfs: the log, within its own budget."""

    anonymous: int
    file: int
    shared: int

    @property
    def own(self) -> int:
        return self.anonymous + self.file


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def on_cpus(cpus: frozenset[int]) -> Iterator[None]:
    """What is started inside runs there: a child inherits the CPUs before its first instruction."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Child:
    """One process, with its output in a file."""

    def __init__(self, name: str, command: Sequence[str], cpus: frozenset[int], log: Path) -> None:
        self.name = name
        self.log = log
        self._printed = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out, on_cpus(cpus):
            self.started = time.perf_counter()
            # A session of its own: Ctrl-C is for the runner, which then ends its children in order.
            self._process = subprocess.Popen(
                [*_DIES_WITH_US, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def output(self) -> str:
        return self.log.read_bytes()[self._printed :].decode(errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_for_line(self, pattern: str, timeout: float) -> float:
        """Seconds from its start until a line that matches was printed."""
        found = re.compile(pattern, re.MULTILINE)
        deadline = time.perf_counter() + timeout
        while not found.search(self.output):
            if not self.running or time.perf_counter() > deadline:
                raise ProcessFailed(f"{self.name} did not get ready: {self.output[-1000:].strip()}")
            time.sleep(0.002)
        return time.perf_counter() - self.started

    def finish(self, timeout: float) -> str:
        """Wait for its own end; what it printed."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailed(f"{self.name} was not done after {timeout:.0f} s") from None
        if code:
            raise ProcessFailed(f"{self.name} failed: {self.output[-1000:].strip()}")
        return self.output

    @contextlib.contextmanager
    def also_on(self, cpus: frozenset[int]) -> Iterator[None]:
        """Let it, and all it started, use these CPUs too for a while."""
        own = os.sched_getaffinity(self.pid)
        self._move(own | cpus)
        try:
            yield
        finally:
            self._move(own)

    def _move(self, cpus: set[int]) -> None:
        """Every thread of its session: a thread that is started meanwhile inherits what its starter has."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getsid(int(process.name)) == self.pid:
                    for task in (process / "task").iterdir():
                        os.sched_setaffinity(int(task.name), cpus)

    def cpu_seconds(self) -> float:
        """User and system time of all its threads, ended ones included."""
        return sum(self._times()) / _TICKS

    def kernel_seconds(self) -> float:
        """System time alone."""
        return self._times()[1] / _TICKS

    def _times(self) -> tuple[int, int]:
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        fields = stat[stat.rindex(")") + 2 :].split()
        return int(fields[11]), int(fields[12])

    def memory(self) -> Memory:
        found = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text(), re.M))
        return Memory(*(int(found[name]) * _KB for name in ("RssAnon", "RssFile", "RssShmem")))

    def kill(self) -> None:
        """kill -9, of everything it started too, and wait until it is gone."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(10)

    def stop(self, timeout: float = 15.0) -> None:
        """Ask it to end, make it end."""
        if self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()


class Rig:
    """Use it as `with Rig() as rig`: nothing of it outlives the block."""

    def __init__(self, *, pin: bool = True) -> None:
        self._found = os.sched_getaffinity(0)
        cpus = sorted(self._found)
        self.pinned = pin and len(cpus) > 1
        self.server_cpus = frozenset(cpus[:1] if self.pinned else cpus)
        self.load_cpus = frozenset(cpus[1:] if self.pinned else cpus)
        self._children: list[Child] = []
        self._directories: list[Path] = []
        self._disk = self.directory("disk")

    def __enter__(self) -> Self:
        os.sched_setaffinity(0, self.load_cpus)  # the runner looks and waits: not on the servers' time
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An impatient second Ctrl-C (and `timeout` sends its signal twice) must not leave half of it behind.
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            os.sched_setaffinity(0, self._found)
            for child in self._children:
                child.kill()
            for directory in self._directories:
                shutil.rmtree(directory, ignore_errors=True)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)

    def roles(self) -> tuple[frozenset[int], frozenset[int]]:
        """CPUs for producers and for consumers beside a server: consumers never on the server's; producers
        on one of their own if there are three, else on the server's."""
        cpus = sorted(self.server_cpus | self.load_cpus)
        if not self.pinned:
            return frozenset(cpus), frozenset(cpus)
        return frozenset(cpus[1:2] if len(cpus) > 2 else cpus[:1]), frozenset(cpus[2:] or cpus[1:])

    def directory(self, name: str, *, in_memory: bool = False) -> Path:
        """A new directory: on disk, or on tmpfs."""
        parent = "/dev/shm" if in_memory and Path("/dev/shm").is_dir() else None
        made = Path(tempfile.mkdtemp(prefix=f"penstock-bench-{name}-", dir=parent))
        self._directories.append(made)
        return made

    def spawn(
        self, name: str, command: Sequence[str], *, server: bool, cpus: frozenset[int] | None = None
    ) -> Child:
        """On the servers' or the load's CPUs, unless others are given."""
        cpus = cpus or (self.server_cpus if server else self.load_cpus)
        child = Child(name, command, cpus, self._disk / f"{name}.log")
        self._children.append(child)
        return child

    def run(self, name: str, command: Sequence[str], timeout: float = 60.0) -> str:
        """A process that ends by itself, on the side of the load; what it printed."""
        return self.spawn(name, command, server=False).finish(timeout)

    def run_json(self, name: str, command: Sequence[str], timeout: float) -> Any:
        printed = self.run(name, command, timeout)
        return json.loads(printed[printed.index("{") :])
