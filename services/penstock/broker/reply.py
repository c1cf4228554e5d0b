"""What a handler gives back to the connection."""

from __future__ import annotations

import asyncio
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


class Receiver:
    """Where a promised reply goes."""

    __slots__ = ()

    def receive(self, reply: Reply) -> None:
        raise NotImplementedError


class Promise:
    """A response that comes of itself, by a call from whoever settles it: no task waits for it."""

    __slots__ = ("_receiver", "_reply", "started")

    def __init__(self) -> None:
        self.started = 0.0
        """When its request came in; 0 if somebody else takes the time."""
        self._receiver: Receiver | None = None
        self._reply: Reply | None = None

    def give_to(self, receiver: Receiver) -> None:
        self._receiver = receiver
        if self._reply is not None:
            receiver.receive(self._reply)

    def keep(self, reply: Reply) -> None:
        self._reply = reply
        if self._receiver is not None:
            self._receiver.receive(reply)


class Hand(Receiver):
    """Takes a promised reply to somebody who awaits it."""

    __slots__ = ("reply",)

    def __init__(self) -> None:
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def receive(self, reply: Reply) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)


class Later:
    """A response that has to wait. While `blocks`, nothing more is read from this connection: the work
    still needs the request's bytes, or must not be overtaken by the next request."""

    __slots__ = ("blocks", "work")

    def __init__(self, work: Awaitable[Reply | None], blocks: bool = False) -> None:
        self.work = work
        self.blocks = blocks


Answer = Reply | Promise | Later | None
"""None: the client asked for no response."""
