"""What a handler gives back to the connection."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple

from penstock.shm.memory import SegmentMemory
from penstock.wire.batch import Buffer


class Reply(NamedTuple):
    """A whole response frame, and the segment memory that must stay as it is until it is sent."""

    buffers: Sequence[Buffer]
    holds: Sequence[SegmentMemory] = ()

    def release(self) -> None:
        for memory in self.holds:
            memory.holds -= 1


class Later(NamedTuple):
    """A response that has to wait. While `blocks`, nothing more is read from this connection: the work
    still needs the request's bytes, or must not be overtaken by the next request."""

    work: Awaitable[Reply | None]
    blocks: bool = False


Answer = Reply | Later | None
"""None: the client asked for no response."""
