"""Idle strategies: what a reader does while there is nothing to read.

A reader calls `idle(work_count)` once per round. Work resets the strategy; a round without work makes it
spin, yield the processor, or park, each a choice between latency and a core. They hold the state of one
reader, so two readers need two of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, Protocol

SHORTEST_PARK: Final = 20e-6
LONGEST_PARK: Final = 1e-3


class IdleStrategy(Protocol):
    def idle(self, work_count: int) -> None:
        """End a round that did `work_count` pieces of work."""

    def reset(self) -> None:
        """Begin again as if there had just been work."""


class Spin:
    """Look again at once: the lowest latency, for a whole core."""

    def idle(self, work_count: int) -> None:
        pass

    def reset(self) -> None:
        pass


class Yield:
    """Let others have the core if they want it; a whole core otherwise."""

    def idle(self, work_count: int) -> None:
        if work_count == 0:
            os.sched_yield()

    def reset(self) -> None:
        pass


class Park:
    """Sleep a fixed time: next to no processor time, that much latency."""

    def __init__(self, seconds: float = LONGEST_PARK, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._seconds = seconds
        self._sleep = sleep

    def idle(self, work_count: int) -> None:
        if work_count == 0:
            self._sleep(self._seconds)

    def reset(self) -> None:
        pass


class BackOff:
    """Spin, then yield, then park for times that double: quick after work, cheap in the long quiet."""

    def __init__(
        self,
        *,
        spins: int = 50,
        yields: int = 50,
        shortest: float = SHORTEST_PARK,
        longest: float = LONGEST_PARK,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spins = spins
        self._yields_until = spins + yields
        self._shortest = shortest
        self._longest = longest
        self._sleep = sleep
        self._rounds = 0
        self._park = shortest

    def idle(self, work_count: int) -> None:
        if work_count > 0:
            self.reset()
            return
        self._rounds += 1
        if self._rounds <= self._spins:
            return
        if self._rounds <= self._yields_until:
            os.sched_yield()
            return
        self._sleep(self._park)
        self._park = min(self._park * 2, self._longest)

    def reset(self) -> None:
        self._rounds = 0
        self._park = self._shortest
