"""One producer of the paper: a connection that sends a request, waits for its answer, and sends the next.

Everything happens in the socket's callbacks, without a task or a future per request, so that a producer
takes far less time than the broker it measures.
"""

from __future__ import annotations

import asyncio
import struct
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.histogram import Latency
from penstock.load.chunks import ChunkRequest
from penstock.wire.errors import ErrorCode

_INT: Final = struct.Struct(">i")
_TIMER: Final = 0.002
"""A timer may be so late by itself. What is later, or waited for an answer, counts from when it was due (the
loop's clock is perf_counter's)."""
_MADE_UP: Final = 1.0
"""Seconds of requests that are sent late rather than left out."""


@dataclass(slots=True)
class Tally:
    """What all producers of a run did; one object, shared."""

    requests: int = 0
    records: int = 0
    bytes: int = 0
    refused: int = 0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    latency: Latency = field(default_factory=Latency)
    failure: str | None = None
    full: str | None = None
    """What a broker said that had no room just then: no failure, for the next request may find some."""

    def answered(self, seconds: float) -> None:
        self.latencies.append(seconds)
        self.latency.observe(seconds)


class ChunkProducer(asyncio.Protocol):
    """One producer's connection: up to `pipeline` requests on their way, the next when one is answered."""

    def __init__(
        self,
        frames: Sequence[ChunkRequest],
        tally: Tally,
        *,
        pipeline: int,
        acks: int,
        interval: float,
        requests: int | None = None,
    ) -> None:
        """`frames` are this connection's own, and at least as many as its pipeline: one is written in place
        again only after its answer has come, so none is copied."""
        self._frames = frames
        self._done = 0
        """Requests that were answered, in the order they were sent in."""
        self._tally = tally
        self._pipeline = pipeline
        self._answers = acks != 0
        self._interval = interval
        """Seconds between requests; 0 for as fast as it goes."""
        self._last = requests
        """How many requests it sends before it stops by itself; None: until it is told."""
        self._received = bytearray()
        self._sent: deque[float] = deque()
        self._next = 0.0
        self._timer: asyncio.Handle | None = None
        self._writable = True
        self._stopping = False
        self._correlation = 0
        self._transport: asyncio.Transport | None = None
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass
        self._next = asyncio.get_running_loop().time()
        self._send_some()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.finished.done():
            if not self._stopping:
                self._tally.failure = f"the broker closed the connection{f': {error}' if error else ''}"
            self.finished.set_result(None)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._send_some()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        while len(received) - start >= 4:
            end = start + 4 + _INT.unpack_from(received, start)[0]
            if end > len(received):
                break
            self._answered(received, start)
            start = end
        del received[:start]
        self._send_some()

    def stop(self) -> None:
        """Send nothing more; `finished` is set when the last answer is here."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._check_finished()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _send_some(self, *, by_timer: bool = False) -> None:
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        while not self._stopping and self._writable and len(self._sent) < self._pipeline:
            if self._correlation == self._last:
                self._stopping = True
                break
            due = 0.0
            if self._interval:
                now = loop.time()
                if self._next > now:
                    if self._timer is None:
                        self._timer = loop.call_at(self._next, self._on_time)
                    return
                if not by_timer or now - self._next > _TIMER:
                    due = self._next
                by_timer = False
                # After a long stall, what could not be sent in time is not made up for in one burst.
                self._next = max(self._next + self._interval, now - _MADE_UP)
            request = self._frames[self._correlation % len(self._frames)]
            self._correlation += 1
            frame = request.stamped(self._correlation, time.time_ns() // 1_000_000)
            if self._answers:
                self._sent.append(due or time.perf_counter())
                self._transport.write(frame)
            else:
                self._transport.write(bytes(frame))
                self._count(request)
                # Nothing comes back to call us: give others a turn.
                self._timer = self._timer or loop.call_soon(self._on_time)
                return
        self._check_finished()

    def _on_time(self) -> None:
        self._timer = None
        if not self.finished.done():
            self._send_some(by_timer=True)

    def _answered(self, response: bytearray, start: int) -> None:
        self._tally.answered(time.perf_counter() - self._sent.popleft())
        request = self._frames[self._done % len(self._frames)]
        self._done += 1
        refused = request.first_error(response, start)
        if refused is None:
            self._count(request)
            return
        partition, code = refused
        self._tally.refused += 1
        told = f"partition {partition} refused its chunk: {ErrorCode(code).name}"
        if code == ErrorCode.kafka_storage_error:
            self._tally.full = told
        else:
            self._tally.failure = told

    def _count(self, request: ChunkRequest) -> None:
        self._tally.requests += 1
        self._tally.records += request.records
        self._tally.bytes += request.chunk_bytes

    def _check_finished(self) -> None:
        if self._stopping and not self._sent and not self.finished.done():
            self.finished.set_result(None)
