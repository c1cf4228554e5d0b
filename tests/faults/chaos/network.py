"""Machines on one machine: a network namespace each, joined by a router that can cut, lose and delay.

The router is the namespace of whoever uses this (`ground.py` makes it), so clients reach every machine
directly and only what machines say to each other goes through the rules below. Cutting one direction is
a routing rule that throws packets away; delay and loss send them through a TUN device that holds them back,
because not every kernel has netem.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SUBNET: Final = "10.77"
_HELD: Final = "held0"
_TABLE: Final = "77"
_TUNSETIFF: Final = 0x400454CA
_TUN_WITHOUT_HEADER: Final = 0x0001 | 0x1000


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to packets of one direction; seconds and a share of 1."""

    delay: float
    jitter: float = 0.0
    loss: float = 0.0


class Network:
    def __init__(self, seed: int) -> None:
        self._numbers: dict[str, int] = {}
        self._held = _Held(seed)
        self._rules: Counter[tuple[str, ...]] = Counter()
        ip("link", "set", "lo", "up")
        ip("link", "set", _HELD, "up")
        ip("route", "add", "default", "dev", _HELD, "table", _TABLE)
        for name, value in (
            ("ip_forward", "1"),
            ("conf/all/rp_filter", "0"),
            ("conf/default/rp_filter", "0"),
        ):
            Path("/proc/sys/net/ipv4", name).write_text(value)
        Path(f"/proc/sys/net/ipv4/conf/{_HELD}/rp_filter").write_text("0")

    def add(self, name: str) -> None:
        """A machine, plugged in."""
        number = self._numbers[name] = len(self._numbers) + 1
        ip("netns", "add", name)
        ip("link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"{_SUBNET}.{number}.1/24", "dev", f"to{number}")
        ip("link", "set", f"to{number}", "up")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "route", "add", "default", "via", f"{_SUBNET}.{number}.1")

    def address(self, name: str) -> str:
        return f"{_SUBNET}.{self._numbers[name]}.2"

    def within(self, name: str) -> tuple[str, ...]:
        return ("nsenter", f"--net=/run/netns/{name}", "--")

    # Faults

    def drop(self, sender: str, receiver: str) -> None:
        """Nothing from one reaches the other; the opposite direction is untouched."""
        self._begin((*self._between(sender, receiver), "blackhole"))

    def deliver(self, sender: str, receiver: str) -> None:
        self._end((*self._between(sender, receiver), "blackhole"))

    def hold(self, sender: str, receiver: str, weather: Weather) -> None:
        """Packets of this direction are late, or lost by chance."""
        self._held.weather[self._pair(sender, receiver)] = weather
        self._begin(self._slow(sender, receiver))

    def release(self, sender: str, receiver: str) -> None:
        self._end(self._slow(sender, receiver))

    def unplug(self, name: str) -> None:
        """Off from everybody, clients too."""
        ip("link", "set", f"to{self._numbers[name]}", "down")

    def plug(self, name: str) -> None:
        ip("link", "set", f"to{self._numbers[name]}", "up")

    def _begin(self, rule: tuple[str, ...]) -> None:
        """Two faults may want the same; the first puts it in force, the last lifts it."""
        self._rules[rule] += 1
        if self._rules[rule] == 1:
            ip("rule", "add", *rule)

    def _end(self, rule: tuple[str, ...]) -> None:
        self._rules[rule] -= 1
        if self._rules[rule] == 0:
            ip("rule", "del", *rule)

    def _between(self, sender: str, receiver: str) -> tuple[str, ...]:
        return ("from", self.address(sender), "to", self.address(receiver))

    def _slow(self, sender: str, receiver: str) -> tuple[str, ...]:
        # By the way it came in: what was held comes back through the TUN device and then goes straight on.
        return (*self._between(sender, receiver), "iif", f"to{self._numbers[sender]}", "lookup", _TABLE)

    def _pair(self, sender: str, receiver: str) -> bytes:
        return bytes(int(part) for each in (sender, receiver) for part in self.address(each).split("."))


class _Held:
    """Takes packets out of the TUN device and puts them back when they are due."""

    def __init__(self, seed: int) -> None:
        self.weather: dict[bytes, Weather] = {}
        self._chance = random.Random(seed)
        self._device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self._device, _TUNSETIFF, struct.pack("16sH22x", _HELD.encode(), _TUN_WITHOUT_HEADER))
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        waiting: list[tuple[float, int, bytes]] = []
        newest: dict[bytes, float] = {}
        number = 0
        while True:
            pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            readable, _, _ = select.select([self._device], [], [], pause)
            now = time.monotonic()
            if readable:
                packet = os.read(self._device, 65536)
                pair = packet[12:20]
                weather = self.weather.get(pair)
                if weather is not None and self._chance.random() >= weather.loss:
                    late = weather.delay + self._chance.random() * weather.jitter
                    newest[pair] = due = max(newest.get(pair, 0.0), now + late)  # late, not shuffled
                    number += 1
                    heapq.heappush(waiting, (due, number, packet))
            while waiting and waiting[0][0] <= now:
                os.write(self._device, heapq.heappop(waiting)[2])
