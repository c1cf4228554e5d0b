"""Receive buffers, bounded in all.

Every connection has a small buffer of its own, which may grow a little to what its client sends. A larger
frame borrows one that grows with what has really arrived, never with what a length field promises, so that
a lie costs nothing. All but the small ones is counted; over the limit a connection waits its turn and its
client's socket fills up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

KEEP: Final = 32 * 1024 * 1024
"""Returned buffers are kept warm up to this much: a fresh megabyte costs 256 page faults."""
_STEPS: Final = 8
"""Sizes from one power of two to the next: few, to be used again, and little wasted."""


class Holder(Protocol):
    def give_up_if_idle(self, seconds: float) -> None: ...


class BufferPool:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.borrowed = 0
        self._owned = 0
        """The part of it that connections keep."""
        self._kept: list[bytearray] = []
        """The one used last, whose pages are warmest, at the end."""
        self._kept_bytes = 0
        self._holders: set[Holder] = set()
        self._waiting: deque[Callable[[], None]] = deque()

    def borrow(self, size: int, holder: Holder) -> bytearray | None:
        """A buffer of at least `size` bytes; None when the limit is reached (see `wait`)."""
        step = max(1, (1 << (size - 1).bit_length()) // (2 * _STEPS))
        size = -(-size // step) * step
        if self.borrowed and self.borrowed + size > self.limit:
            return None
        self.borrowed += size
        self._holders.add(holder)
        for at in range(len(self._kept) - 1, -1, -1):
            if len(self._kept[at]) == size:
                self._kept_bytes -= size
                return self._kept.pop(at)
        return bytearray(size)

    def enlarge(self, size: int) -> bool:
        """Count `size` more bytes of a connection's own buffer; False if these have half of all already."""
        if self._owned + size > self.limit // 2:
            return False
        self._owned += size
        self.borrowed += size
        return True

    def shrink(self, size: int) -> None:
        self._owned -= size
        self.borrowed -= size

    def give_back(self, buffer: bytearray, holder: Holder) -> None:
        self._holders.discard(holder)
        self.swap(buffer)

    def swap(self, buffer: bytearray) -> None:
        """Take back a buffer whose holder has borrowed a larger one instead."""
        self.borrowed -= len(buffer)
        self._kept.append(buffer)
        self._kept_bytes += len(buffer)
        while self._kept_bytes > KEEP:
            self._kept_bytes -= len(self._kept.pop(0))
        if self._waiting:
            self._waiting.popleft()()

    def wait(self, wake: Callable[[], None]) -> None:
        self._waiting.append(wake)

    def reap(self, seconds: float) -> None:
        """Somebody has waited for `seconds`: holders that received nothing for as long must go."""
        if self._waiting:
            for holder in list(self._holders):
                holder.give_up_if_idle(seconds)

    def stop_waiting(self, wake: Callable[[], None]) -> None:
        if wake in self._waiting:
            self._waiting.remove(wake)
