"""A connection between two brokers: frames in, frames out.

`Network` is the door to the world: the real one below is TCP; a simulated one lets tests lose, delay and
reorder connections. A frame's body is good only during the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from penstock.replication.frames import HEAD, MAX_FRAME, MalformedFrame
from penstock.wire.batch import Buffer
from penstock.wire.wakeup import Wakeup

_FIRST_BUFFER: Final = 256 << 10
_KEPT_BUFFER: Final = 4 << 20
"""A larger one goes after its frame. Fresh memory for each frame costs more than all else done with it."""
_HEAD_SIZE: Final = 5
_unpack_head: Final = HEAD.unpack_from


class Handler(Protocol):
    """One side of a connection."""

    def frame(self, kind: int, body: memoryview) -> None: ...

    def lost(self) -> None: ...


class Channel(Protocol):
    def send(self, buffers: Sequence[Buffer]) -> None: ...

    @property
    def is_stuck(self) -> bool:
        """The other side doesn't take what was sent: more would only pile up."""
        ...

    @property
    def is_closed(self) -> bool: ...

    def close(self) -> None: ...


class Network(Protocol):
    async def dial(self, address: tuple[str, int], handler: Handler) -> Channel: ...

    async def listen(
        self, address: tuple[str, int], accept: Callable[[Channel], Handler]
    ) -> tuple[int, Callable[[], None]]:
        """The port that was bound, and how to stop."""
        ...


class TcpChannel:
    """An asyncio.BufferedProtocol in all but name: compiled classes have no interpreted parents."""

    def __init__(self, handler_for: Callable[[Channel], Handler]) -> None:
        self._handler_for = handler_for
        self._handler: Handler | None = None
        self._buffer = bytearray(_FIRST_BUFFER)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._paused = False
        self._closed = False
        self._transport: asyncio.Transport | None = None
        self._wakeup: Wakeup | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._wakeup = Wakeup(transport)
        self._handler = self._handler_for(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :] if self._filled else self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        view = self._view
        start = missing = 0
        try:
            while self._filled - start >= _HEAD_SIZE and not self._closed:
                length, kind = _unpack_head(view, start)
                end = start + 4 + length
                if not 1 <= length <= MAX_FRAME:
                    raise MalformedFrame(f"a frame of {length} bytes")
                if end > self._filled:
                    missing = end - self._filled
                    if end - start > len(self._buffer):
                        self._grow(start, end - start)
                        self._await(missing)
                        return
                    break
                assert self._handler is not None
                self._handler.frame(kind, view[start + _HEAD_SIZE : end])
                start = end
        except (MalformedFrame, ValueError, KeyError, TypeError):
            self.close()
            raise
        rest = self._filled - start
        if start and rest:
            view[:rest] = view[start : self._filled]  # a memmove
        elif start and len(self._buffer) > _KEPT_BUFFER:
            self._take(bytearray(_FIRST_BUFFER))
        self._filled = rest
        self._await(missing)

    def _await(self, missing: int) -> None:
        if self._wakeup is not None and not self._closed:
            self._wakeup.await_rest(missing, len(self._buffer) - self._filled)

    def _grow(self, start: int, size: int) -> None:
        grown = bytearray(size + _FIRST_BUFFER)
        self._filled -= start
        grown[: self._filled] = self._view[start : start + self._filled]
        self._take(grown)

    def _take(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        if self._wakeup is not None:
            self._wakeup.close()
        if self._handler is not None:
            self._handler.lost()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def send(self, buffers: Sequence[Buffer]) -> None:
        if self._transport is not None and not self._closed:
            if len(buffers) == 1:
                self._transport.write(buffers[0])
            else:
                self._transport.writelines(buffers)

    @property
    def is_stuck(self) -> bool:
        return self._paused

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        if self._transport is not None:
            self._transport.abort()


class TcpNetwork:
    async def dial(self, address: tuple[str, int], handler: Handler) -> Channel:
        loop = asyncio.get_running_loop()
        channel = TcpChannel(lambda _: handler)
        await loop.create_connection(lambda: _as_protocol(channel), address[0], address[1])
        return channel

    async def listen(
        self, address: tuple[str, int], accept: Callable[[Channel], Handler]
    ) -> tuple[int, Callable[[], None]]:
        loop = asyncio.get_running_loop()
        server: Any = await loop.create_server(  # uvloop's sockets are a list, not a tuple
            lambda: _as_protocol(TcpChannel(accept)), address[0], address[1], reuse_address=True
        )
        port: int = server.sockets[0].getsockname()[1]
        return port, server.close


def _as_protocol(channel: TcpChannel) -> asyncio.BufferedProtocol:
    return cast(asyncio.BufferedProtocol, channel)
