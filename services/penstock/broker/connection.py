"""One client's connection: frames in, answers out, in order, and flow control.

Bytes are received straight into a buffer and handed to the dispatch as views. Answers go out in the
order of their requests, whichever is ready first. With a high-water mark of zero the transport tells us
whenever the socket did not take everything at once: from then on nothing more is read from this client
and the segments its responses point into stay held, until it has read them.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from penstock.broker.buffers import BufferPool
from penstock.broker.reply import Answer, Later, Promise, Receiver, Reply
from penstock.wire.errors import MalformedRequest
from penstock.wire.wakeup import Wakeup

log = logging.getLogger(__name__)

OWN_BUFFER: Final = 32 * 1024
OWN_LIMIT: Final = 256 * 1024
"""A connection's own buffer grows up to this: borrowing one costs a copy and a system call a frame."""
FIRST_BORROW: Final = 2 * 1024 * 1024
"""Room for Kafka's default of a mebibyte and its header: to move it once more is a copy of all of it."""
_LENGTH: Final = struct.Struct(">i")
MAX_PIPELINED: Final = 64
PATIENCE: Final = 10.0
"""Seconds a large frame may stand still while others wait for its buffer."""


class Dispatch(Protocol):
    def __call__(self, frame: memoryview, connection: Connection) -> Answer: ...


class _Slot(Receiver):
    """The place of one answer in the order of requests."""

    __slots__ = ("connection", "done", "reply")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.done = False
        self.reply: Reply | None = None

    def receive(self, reply: Reply) -> None:
        self.connection.received(self, reply)


class Connection:
    """An asyncio.BufferedProtocol in all but name: compiled classes have no interpreted parents."""

    def __init__(
        self,
        dispatch: Dispatch,
        buffers: BufferPool,
        max_frame: int,
        on_open: Callable[[Connection], None],
        on_close: Callable[[Connection], None],
    ) -> None:
        self._dispatch = dispatch
        self._buffers = buffers
        self._max_frame = max_frame
        self._on_open = on_open
        self._on_close = on_close
        self._own = bytearray(OWN_BUFFER)
        self._buffer = self._own
        self._view = memoryview(self._own)
        self._filled = 0
        self._frame_end = 0
        """Where the frame that outgrew the own buffer ends; 0 while frames fit."""
        self._parsed = 0
        """How far frames were handled, while a blocking request still looks at its bytes."""
        self._largest = FIRST_BORROW
        """The largest frame that came whole: for the next one there is room at once."""
        self._waits_for_buffers = False
        self._received_at = 0.0
        self._wakeup: Wakeup | None = None
        self._slots: deque[_Slot] = deque()
        self._sent_holds: list[Reply] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._blocked = False
        self._write_paused = False
        self._reading = True
        self._closing = False
        self._transport: asyncio.Transport | None = None
        self.peer = ""
        self.client_id = ""
        self.software = ""
        self.since = time.time()
        self.requests = 0
        self.bytes_in = 0
        self.bytes_out = 0

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._transport.set_write_buffer_limits(high=0)
        self._wakeup = Wakeup(transport)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
        self._on_open(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        if self._wakeup is not None:
            self._wakeup.close()
        for task in self._tasks:
            task.cancel()
        for slot in self._slots:
            if slot.reply is not None:
                slot.reply.release()
        self._slots.clear()
        self._release_sent()
        self._buffers.stop_waiting(self._resume_parsing)
        self._return_borrowed()
        self._buffers.shrink(len(self._own) - OWN_BUFFER)
        self._on_close(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        end = min(self._frame_end, len(self._buffer)) if self._frame_end else len(self._buffer)
        return self._view[self._filled : end]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self.bytes_in += nbytes
        if self._buffer is not self._own:
            self._received_at = time.monotonic()
        self._parse()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._write_paused = True
        self._set_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._release_sent()
        self._flush()
        self._resume_parsing()

    # Frames

    def _parse(self) -> None:
        """Handle every whole frame that is here; move what is left to the front."""
        start = missing = 0
        view = self._view
        while not self._stopped() and self._filled - start >= 4:
            length: int = _LENGTH.unpack_from(view, start)[0]
            if not 0 < length <= self._max_frame:
                self._refuse(f"a frame of {length} bytes (at most {self._max_frame} are taken)")
                return
            end = start + 4 + length
            if end > self._filled:
                missing = end - self._filled
                # A large buffer is only for bytes that came: the promise of many costs nothing.
                if self._frame_end or self._filled - start == len(self._buffer):
                    self._grow(start, end - start)
                    self._await(missing)
                    return
                break
            self._handle(view[start + 4 : end])
            start = end
        if self._closing:
            return
        if start:
            if self._blocked:
                # The blocking request still looks at its bytes: they stay where they are.
                self._parsed = start
                self._await(0)
                return
            self._move_to_front(start)
        self._await(missing)

    def _await(self, missing: int) -> None:
        if self._wakeup is not None:
            self._wakeup.await_rest(missing, len(self._buffer) - self._filled)

    def _move_to_front(self, start: int) -> None:
        rest = self._filled - start
        if self._buffer is not self._own:
            # A borrowed buffer holds exactly one frame.
            self._largest = max(self._largest, start)
            self._return_borrowed()
        elif rest:
            self._own[:rest] = self._own[start : self._filled]
        self._filled = rest
        self._parsed = 0

    def _grow(self, start: int, size: int) -> None:
        """Go on with the frame at `start` in a larger buffer: the promised size, but at most twice what came,
        or what this client has shown to send."""
        received = self._filled - start
        if self._buffer is self._own and size <= OWN_LIMIT and self._enlarge(start, size):
            return
        self._frame_end = size
        if self._buffer is not self._own and received < len(self._buffer):
            return
        wanted = min(size, max(self._largest, 2 * received))
        borrowed = self._buffers.borrow(wanted, self)
        if borrowed is None:
            if start:
                self._own[:received] = self._own[start : self._filled]
                self._filled = received
            self._frame_end = 0
            self._pause_for_buffers()
            return
        borrowed[:received] = self._view[start : self._filled]
        self._received_at = time.monotonic()
        previous = self._buffer
        self._buffer = borrowed
        self._view = memoryview(borrowed)
        self._filled = received
        if previous is not self._own:
            self._buffers.swap(previous)

    def _enlarge(self, start: int, size: int) -> bool:
        """A larger buffer of its own, if there is one: its client sends such frames."""
        wanted = 1 << (size - 1).bit_length()
        if not self._buffers.enlarge(wanted - len(self._own)):
            return False
        received = self._filled - start
        own = bytearray(wanted)
        own[:received] = self._view[start : self._filled]
        self._own = self._buffer = own
        self._view = memoryview(own)
        self._filled = received
        return True

    def _pause_for_buffers(self) -> None:
        self._waits_for_buffers = True
        self._buffers.wait(self._resume_parsing)
        self._set_reading()
        # Holders that stall, or wait for each other's buffers, would hold everybody up for ever.
        asyncio.get_running_loop().call_later(PATIENCE, self._buffers.reap, PATIENCE)

    def give_up_if_idle(self, seconds: float) -> None:
        if time.monotonic() - self._received_at >= seconds:
            self._refuse("nothing came of a large frame while others wait for buffers")

    def _return_borrowed(self) -> None:
        self._frame_end = 0
        if self._buffer is not self._own:
            borrowed, self._buffer = self._buffer, self._own
            self._view = memoryview(self._own)
            self._buffers.give_back(borrowed, self)

    def _handle(self, frame: memoryview) -> None:
        self.requests += 1
        try:
            answer = self._dispatch(frame, self)
        except MalformedRequest as error:
            self._refuse(str(error))
            return
        except Exception:
            log.exception("a request from %s failed; closing its connection", self.peer)
            self.close()
            return
        if answer is None:
            return
        slots = self._slots
        if isinstance(answer, Reply):
            if not slots and not self._write_paused:
                self._send(answer)
                return
            slot = _Slot(self)
            slot.reply, slot.done = answer, True
            slots.append(slot)
        elif isinstance(answer, Promise):
            slot = _Slot(self)
            slots.append(slot)
            answer.give_to(slot)
        else:
            slot = _Slot(self)
            slots.append(slot)
            self._blocked = answer.blocks
            task = asyncio.get_running_loop().create_task(self._finish(slot, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._set_reading()

    def received(self, slot: _Slot, reply: Reply) -> None:
        """A promise was kept, in the middle of somebody else's work: send, and handle no request here."""
        if self._closing:
            reply.release()
            return
        slot.reply, slot.done = reply, True
        self._flush()
        if not self._reading:
            asyncio.get_running_loop().call_soon(self._resume_parsing)

    async def _finish(self, slot: _Slot, later: Later) -> None:
        try:
            reply = await later.work
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a request from %s failed; closing its connection", self.peer)
            self.close()
            return
        if self._closing:
            if reply is not None:
                reply.release()
            return
        slot.reply, slot.done = reply, True
        if later.blocks:
            self._blocked = False
        self._flush()
        self._resume_parsing()

    # Answers

    def _flush(self) -> None:
        slots = self._slots
        while slots and slots[0].done and not self._write_paused and not self._closing:
            reply = slots.popleft().reply
            if reply is not None:
                self._send(reply)

    def _send(self, reply: Reply) -> None:
        assert self._transport is not None
        if len(reply.buffers) == 1:
            self._transport.write(reply.buffers[0])
        else:
            self._transport.writelines(reply.buffers)
        for buffer in reply.buffers:
            self.bytes_out += len(buffer)
        if reply.holds:
            if self._write_paused:
                self._sent_holds.append(reply)
            else:
                reply.release()

    def _release_sent(self) -> None:
        for reply in self._sent_holds:
            reply.release()
        self._sent_holds.clear()

    # Flow control

    def _stopped(self) -> bool:
        return (
            self._blocked
            or self._closing
            or self._write_paused
            or self._waits_for_buffers
            or len(self._slots) >= MAX_PIPELINED
        )

    def _set_reading(self) -> None:
        wanted = not self._stopped()
        if wanted == self._reading or self._transport is None or self._closing:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _resume_parsing(self) -> None:
        self._waits_for_buffers = False
        if self._stopped():
            return
        if self._parsed:
            self._move_to_front(self._parsed)
        if self._filled:
            self._parse()
        self._set_reading()

    def _refuse(self, why: str) -> None:
        log.warning("closing the connection from %s: %s", self.peer, why)
        self.close()

    def close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def in_flight(self) -> int:
        return len(self._slots)
