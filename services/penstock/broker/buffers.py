"""Receive buffers, bounded in all.

Every connection has a small buffer of its own, which may grow a little to what its client sends. A larger
frame borrows one that grows with what has really arrived, never with what a length field promises, so that
a lie costs nothing. All but the small ones is counted; over the limit a connection waits its turn and its
client's socket fills up.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final, Protocol

KEEP: Final = 16 * 1024 * 1024
"""Returned buffers are kept warm up to this much: a fresh megabyte costs 256 page faults."""


class Holder(Protocol):
    def give_up_if_idle(self, seconds: float) -> None: ...


class BufferPool:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.borrowed = 0
        self._owned = 0
        """The part of it that connections keep."""
        self._kept: dict[int, list[bytearray]] = defaultdict(list)
        self._kept_bytes = 0
        self._holders: set[Holder] = set()
        self._waiting: deque[Callable[[], None]] = deque()

    def borrow(self, size: int, holder: Holder) -> bytearray | None:
        """A buffer of at least `size` bytes; None when the limit is reached (see `wait`)."""
        size = 1 << (size - 1).bit_length()
        if self.borrowed and self.borrowed + size > self.limit:
            return None
        self.borrowed += size
        self._holders.add(holder)
        kept = self._kept[size]
        if kept:
            self._kept_bytes -= size
            return kept.pop()
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
        size = len(buffer)
        self.borrowed -= size
        if self._kept_bytes + size <= KEEP:
            self._kept[size].append(buffer)
            self._kept_bytes += size
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
