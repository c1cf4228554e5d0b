"""Where a cluster under faults stands: namespaces of its own for mounts, processes and networks.

Everything is gone when the process that entered is gone: brokers, shared memory, mounts, interfaces. Needs
root or user namespaces; where neither is allowed the cluster stands on the loopback, with proxies for
a network, and only the full disk is left out of the schedule.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar, Final

from chaos.network import Network
from chaos.proxies import Proxies
from cluster import Ground

_INSIDE: Final = "CHAOS_INSIDE"
_CLOCK: Final = "/usr/lib/*/faketime/libfaketime.so.1"
_ROOMY: Final = "16g"
_TRIES: Final = 50


def enter(arguments: list[str]) -> bool:
    """Run this program again inside its own namespaces; returns when inside, or when that can't be.

    True: inside, as root of it.
    """
    if os.environ.get(_INSIDE):
        return True
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        unshare.append("--map-root-user")
    try:
        subprocess.run(["ip", "-V"], check=True, capture_output=True)
        subprocess.run([*unshare, "true"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return False
    os.environ[_INSIDE] = "1"
    os.execvp(unshare[0], [*unshare, sys.executable, "-m", "chaos", *arguments])
    return False  # not reached: another program has this process now


class Machines(Ground):
    """Each with a network around it that can fail and a clock that can step."""

    has_disks: ClassVar = False
    """Whether they can fill up."""
    network: Network | Proxies

    def __init__(self, directory: Path, names: list[str], *, clocks: bool) -> None:
        """Without clocks that can step all is much faster: libfaketime is in the way of every look at one."""
        self._directory = directory
        self._library = next(iter(sorted(Path("/").glob(_CLOCK[1:]))), None) if clocks else None
        for name in names:
            self.step_clock(name, 0)

    @property
    def has_clocks(self) -> bool:
        """Whether libfaketime is here (Debian: libfaketime)."""
        return self._library is not None

    def environment(self, name: str) -> dict[str, str]:
        if self._library is None:
            return {}
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock(name)),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def step_clock(self, name: str, seconds: int) -> None:
        """Its wall clock is off by so much from now on."""
        self._clock(name).parent.mkdir(parents=True, exist_ok=True)
        self._clock(name).write_text(f"{seconds:+d}\n")

    def _clock(self, name: str) -> Path:
        return self._directory / name / "clock"


class Loopback(Machines):
    """All on this machine, each with an address that nobody's outgoing connection has taken a port of."""

    def __init__(self, directory: Path, names: list[str], seed: int, *, clocks: bool = True) -> None:
        super().__init__(directory, names, clocks=clocks)
        self.network: Proxies = Proxies(names, seed)
        self._hosts = {name: f"127.77.0.{number}" for number, name in enumerate(names, 1)}
        self._began = time.time()
        atexit.register(self._sweep)

    def host(self, name: str) -> str:
        return self._hosts[name]

    def door(self, sender: str | None, receiver: str, address: str) -> str:
        return self.network.door(sender, receiver, address)

    def _sweep(self) -> None:
        """What libfaketime had in shared memory for a process that was killed stays there."""
        for path in Path("/dev/shm").glob("*faketime_*_*"):
            with contextlib.suppress(FileNotFoundError):
                found, process = path.stat(), path.name.rsplit("_", 1)[1]
                is_ours = found.st_uid == os.geteuid() and found.st_mtime >= self._began
                if is_ours and not Path("/proc", process).exists():
                    path.unlink()


class Fields(Machines):
    """In namespaces: each with a network of its own, and a disk that can fill up."""

    has_disks = True

    def __init__(self, directory: Path, names: list[str], seed: int, *, clocks: bool = True) -> None:
        for place in ("/run", "/dev/shm"):
            _mount(place, _ROOMY)
        super().__init__(directory, names, clocks=clocks)
        self.network: Network = Network(seed)
        for name in names:
            self.network.add(name)
            if name != "etcd":
                disk = self.disk(name)
                disk.mkdir(parents=True)
                _mount(str(disk), _ROOMY)

    def disk(self, name: str) -> Path:
        return self._directory / name / "data"

    def host(self, name: str) -> str:
        return self.network.address(name)

    def within(self, name: str) -> tuple[str, ...]:
        return self.network.within(name)

    def fill_disk(self, name: str) -> None:
        """Not one page more can be written, or a few, if it is written to while it is looked at."""
        for slack in range(_TRIES):
            used = os.statvfs(self.disk(name))
            pages = max(1, used.f_blocks - used.f_bfree) + slack
            try:
                _mount(str(self.disk(name)), str(pages * used.f_frsize), "remount,")
                return
            except subprocess.CalledProcessError:  # more is in use by now than it would have room for
                if slack == _TRIES - 1:
                    raise

    def empty_disk(self, name: str) -> None:
        _mount(str(self.disk(name)), _ROOMY, "remount,")


def _mount(place: str, size: str, how: str = "") -> None:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"{how}size={size}", "tmpfs", place], check=True, capture_output=True
    )
