"""How long a leader rests between two chunks for a backup that catches up.

Not at all while the broker has time to spare: most of a chunk's time goes by elsewhere, on its way and in
the backup. Once it has none, all that copying takes is taken from producers; then it makes room by steps,
down to a tenth of the time, and comes back by smaller ones. So a backup gets what producers leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_LOOK: Final = 0.05
"""Seconds between two looks. A chunk's own time would not tell: the broker is busy while it sends one."""
_BUSY: Final = 0.7
"""A leader at full speed is little above it, for it waits for producers too: at 0.8 they lost a third."""
_LESS: Final = 0.5
_MORE: Final = 1.1
_LEAST: Final = 0.1
_SHORTEST: Final = 0.001
_LONGEST: Final = 0.3


class Courtesy:
    def __init__(self, now: Callable[[], float], demand: Callable[[], float]) -> None:
        """`demand` counts the seconds for which the broker had something to do."""
        self._now = now
        self._demand = demand
        self._looked_at = now()
        self._demanded = demand()
        self._share = 0.5
        """Of the time, in which a chunk may be on its way."""

    def rest(self, worked: float) -> float:
        """Seconds to wait after `worked` seconds, by how busy the broker was."""
        now = self._now()
        if now - self._looked_at >= _LOOK:
            self._look(now)
        return min(_LONGEST, max(_SHORTEST, worked * (1 / self._share - 1)))

    def _look(self, now: float) -> None:
        demanded = self._demand()
        busy = (demanded - self._demanded) / (now - self._looked_at)
        self._looked_at, self._demanded = now, demanded
        self._share = max(_LEAST, self._share * _LESS) if busy > _BUSY else min(1.0, self._share * _MORE)


def thread_demand() -> float:
    """Seconds for which the calling thread ran, or stood in line for a CPU."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as counted:
            ran, waited = counted.read().split()[:2]
    except OSError:  # not every kernel counts the waiting
        return time.thread_time()
    return (int(ran) + int(waited)) / 1e9
