"""What a handler gives back to the connection."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from penstock.shm.memory import SegmentMemory
from penstock.wire.batch import Buffer


class Reply:
    """A whole response frame, and the segment memory that must stay as it is until it is sent."""

    __slots__ = ("buffers", "holds")

    def __init__(self, buffers: Sequence[Buffer], holds: Sequence[SegmentMemory] = ()) -> None:
        self.buffers = buffers
        self.holds = holds

    def release(self) -> None:
        for memory in self.holds:
            memory.holds -= 1


class Later:
    """A response that has to wait. While `blocks`, nothing more is read from this connection: the work
    still needs the request's bytes, or must not be overtaken by the next request."""

    __slots__ = ("blocks", "work")

    def __init__(self, work: Awaitable[Reply | None], blocks: bool = False) -> None:
        self.work = work
        self.blocks = blocks


Answer = Reply | Later | None
"""None: the client asked for no response."""
