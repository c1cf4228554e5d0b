"""How long a leader rests between two chunks for a backup that catches up.

As long as the chunk took: half of its time. Once the broker has no time to spare, all that copying takes is
taken from producers; then it is a tenth. A backup catches up when they leave it room.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_BUSY: Final = 0.85
_RESTS_WHEN_BUSY: Final = 9.0
_SHORTEST: Final = 0.001
_LONGEST: Final = 0.3


class Courtesy:
    def __init__(self, now: Callable[[], float], demand: Callable[[], float]) -> None:
        """`demand` counts the seconds for which the broker had something to do."""
        self._now = now
        self._demand = demand
        self._looked_at = now()
        self._demanded = demand()

    def rest(self, worked: float) -> float:
        """Seconds to wait after `worked` seconds, by how busy the broker was since the last call."""
        now, demanded = self._now(), self._demand()
        busy = demanded - self._demanded > _BUSY * (now - self._looked_at)
        self._looked_at, self._demanded = now, demanded
        return min(_LONGEST, max(_SHORTEST, worked * (_RESTS_WHEN_BUSY if busy else 1.0)))


def thread_demand() -> float:
    """Seconds for which the calling thread ran, or stood in line for a CPU."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as counted:
            ran, waited = counted.read().split()[:2]
    except OSError:  # not every kernel counts the waiting
        return time.thread_time()
    return (int(ran) + int(waited)) / 1e9
