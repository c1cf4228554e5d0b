"""The paper's producer: requests of one chunk per partition, sent as fast as, or at the rate that, is asked.

Called by `penstock load` and the benchmarks. A chunk is one record batch, encoded once; for each request
only its timestamps and CRC are made anew. Everything happens in the socket's callbacks, without a task or
a future per request, so that a producer takes far less time than the broker it measures.
"""

from __future__ import annotations

import asyncio
import base64
import random
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from crc32c import crc32c

from penstock.wire import batch
from penstock.wire.errors import ErrorCode
from penstock.wire.records import Compression, Record, encode_batch

_PRODUCE: Final = 0
_VERSION: Final = 7  # the last one before flexible encodings: fixed places for everything
_CLIENT_ID: Final = b"penstock-load"
_HEAD: Final = struct.Struct(">ihhih")
_ACKS_TIMEOUT: Final = struct.Struct(">hhii")
_CORRELATION_AT: Final = 8
_TIMESTAMPS: Final = struct.Struct(">qq")
_CRC: Final = struct.Struct(">I")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_ANSWERED_PARTITION: Final = 30
"""Bytes of index, error code, base offset, append time and log start offset in the response."""
_TIMEOUT_MS: Final = 30_000
_RECORD_OVERHEAD: Final = 10
"""About what a record's lengths, deltas and counts take besides its value."""


class LoadFailed(Exception):
    """The broker refused records or went away; the text says which."""


@dataclass(slots=True)
class Tally:
    """What all producers of a run did; one object, shared."""

    requests: int = 0
    records: int = 0
    bytes: int = 0
    refused: int = 0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    failure: str | None = None


def make_chunk(
    chunk_bytes: int, record_bytes: int, compression: Compression, seed: int = 0
) -> tuple[bytes, int]:
    """A batch of about `chunk_bytes` before compression, and how many records it holds."""
    count = max(1, (chunk_bytes - batch.HEADER_SIZE) // (record_bytes + _RECORD_OVERHEAD))
    # Text, half of it random: compressible about as much as real events are.
    source = random.Random(seed)
    filler = b"penstock " * (record_bytes // 9 + 1)
    now = time.time_ns() // 1_000_000
    records = []
    for offset in range(count):
        noise = base64.b64encode(source.randbytes(record_bytes))[: record_bytes // 2]
        value = noise + filler[: record_bytes - len(noise)]
        records.append(Record(offset, now, None, value))
    return encode_batch(records, compression=compression), count


class ChunkRequest:
    """A produce request with one chunk for each partition, and where its changing parts lie."""

    def __init__(self, topic: str, partitions: Sequence[int], chunk: bytes, records: int, acks: int) -> None:
        self._topic, self._chunk, self._chunk_records, self._acks = topic, chunk, records, acks
        self.records = records * len(partitions)
        self.chunk_bytes = len(chunk) * len(partitions)
        name = topic.encode()
        frame = bytearray(_HEAD.pack(0, _PRODUCE, _VERSION, 0, len(_CLIENT_ID)) + _CLIENT_ID)
        frame += _ACKS_TIMEOUT.pack(-1, acks, _TIMEOUT_MS, 1)
        frame += _SHORT.pack(len(name)) + name + _INT.pack(len(partitions))
        self._batches: list[int] = []
        for partition in partitions:
            frame += _INT.pack(partition) + _INT.pack(len(chunk))
            self._batches.append(len(frame))
            frame += chunk
        _INT.pack_into(frame, 0, len(frame) - 4)
        self._frame = frame
        self._view = memoryview(frame)
        self.first_answer = 4 + 4 + 4 + 2 + len(name) + 4
        """Where the first partition's answer begins in the response, its length included."""
        self.partitions = tuple(partitions)

    def twin(self) -> ChunkRequest:
        """The same request in memory of its own."""
        return ChunkRequest(self._topic, self.partitions, self._chunk, self._chunk_records, self._acks)

    def stamped(self, correlation: int, now_ms: int) -> bytearray:
        """The frame to send, its records made now. The same memory every time."""
        frame = self._frame
        _INT.pack_into(frame, _CORRELATION_AT, correlation & 0x7FFFFFFF)
        crc = None
        for start in self._batches:
            _TIMESTAMPS.pack_into(frame, start + batch.BASE_TIMESTAMP, now_ms, now_ms)
            if crc is None:  # the chunks are all alike
                crc = crc32c(self._view[start + batch.ATTRIBUTES : start + len(self._chunk)])
            _CRC.pack_into(frame, start + batch.CRC, crc)
        return frame

    def first_error(self, response: bytearray, start: int) -> tuple[int, int] | None:
        """(partition, error code) of the first chunk that was refused."""
        at = start + self.first_answer
        for _ in self.partitions:
            (code,) = _SHORT.unpack_from(response, at + 4)
            if code:
                return _INT.unpack_from(response, at)[0], code
            at += _ANSWERED_PARTITION
        return None


class ChunkProducer(asyncio.Protocol):
    """One producer's connection: up to `pipeline` requests on their way, the next when one is answered."""

    def __init__(
        self, request: ChunkRequest, tally: Tally, *, pipeline: int, acks: int, interval: float
    ) -> None:
        self._request = request
        # A frame is written in place again only after its answer has come, so none is copied.
        self._frames = [request, *(request.twin() for _ in range(pipeline - 1))]
        self._tally = tally
        self._pipeline = pipeline
        self._answers = acks != 0
        self._interval = interval
        """Seconds between requests; 0 for as fast as it goes."""
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

    def _send_some(self) -> None:
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        while not self._stopping and self._writable and len(self._sent) < self._pipeline:
            if self._interval:
                now = loop.time()
                if self._next > now:
                    if self._timer is None:
                        self._timer = loop.call_at(self._next, self._on_time)
                    return
                # What could not be sent in time is not made up for in one burst.
                self._next = max(self._next + self._interval, now - self._interval)
            self._correlation += 1
            request = self._frames[self._correlation % self._pipeline]
            frame = request.stamped(self._correlation, time.time_ns() // 1_000_000)
            if self._answers:
                self._sent.append(time.perf_counter())
                self._transport.write(frame)
            else:
                self._transport.write(bytes(frame))
                self._count()
                # Nothing comes back to call us: give others a turn.
                self._timer = self._timer or loop.call_soon(self._on_time)
                return
        self._check_finished()

    def _on_time(self) -> None:
        self._timer = None
        if not self.finished.done():
            self._send_some()

    def _answered(self, response: bytearray, start: int) -> None:
        self._tally.latencies.append(time.perf_counter() - self._sent.popleft())
        refused = self._request.first_error(response, start)
        if refused is None:
            self._count()
            return
        partition, code = refused
        self._tally.refused += 1
        self._tally.failure = f"partition {partition} refused its chunk: {ErrorCode(code).name}"

    def _count(self) -> None:
        self._tally.requests += 1
        self._tally.records += self._request.records
        self._tally.bytes += self._request.chunk_bytes

    def _check_finished(self) -> None:
        if self._stopping and not self._sent and not self.finished.done():
            self.finished.set_result(None)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    topic: str
    leaders: Mapping[str, Sequence[int]]
    """HOST:PORT of each leader, and the partitions that are to be written there."""
    chunk: int = 16 * 1024
    record: int = 100
    producers: int = 1
    pipeline: int = 1
    rate: float = 0.0
    """Records per second, of all producers together; 0 for as many as can be."""
    seconds: float = 10.0
    compression: Compression = Compression.NONE
    acks: int = 1


@dataclass(frozen=True, slots=True)
class LoadReport:
    seconds: float
    requests: int
    records: int
    bytes: int
    refused: int
    records_per_second: float
    median_records_per_second: float
    """The median of whole seconds, as the paper plots it."""
    megabytes_per_second: float
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    latency_ms_max: float | None
    failure: str | None


async def run_load(plan: LoadPlan, on_second: Callable[[float, Tally], None] | None = None) -> LoadReport:
    """Produce for `plan.seconds`. Raises LoadFailed when nothing could be written at all."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    chunk, records = make_chunk(plan.chunk, plan.record, plan.compression)
    share = sum(map(len, plan.leaders.values())) * records * plan.producers
    interval = share / plan.rate if plan.rate else 0.0
    producers: list[ChunkProducer] = []
    try:
        for _ in range(plan.producers):
            for address, partitions in plan.leaders.items():
                host, _, port = address.rpartition(":")
                request = ChunkRequest(plan.topic, partitions, chunk, records, plan.acks)
                make = partial(
                    ChunkProducer, request, tally, pipeline=plan.pipeline, acks=plan.acks, interval=interval
                )
                _, producer = await loop.create_connection(make, host.strip("[]"), int(port))
                producers.append(producer)
        started = time.perf_counter()
        per_second = await _watch(plan.seconds, started, tally, producers, on_second)
        for producer in producers:
            producer.stop()
        await asyncio.wait([producer.finished for producer in producers], timeout=_TIMEOUT_MS / 1000)
        elapsed = time.perf_counter() - started
    finally:
        for producer in producers:
            producer.close()
    if tally.failure is not None and tally.records == 0:
        raise LoadFailed(tally.failure)
    return _report(tally, elapsed, per_second)


async def _watch(
    seconds: float,
    started: float,
    tally: Tally,
    producers: Sequence[ChunkProducer],
    on_second: Callable[[float, Tally], None] | None,
) -> list[int]:
    """Records in each whole second, until the time is up or a producer can't go on."""
    per_second: list[int] = []
    before = tally.records
    while (elapsed := time.perf_counter() - started) < seconds:
        pause = min(len(per_second) + 1, seconds) - elapsed
        await asyncio.wait([producer.finished for producer in producers], timeout=max(pause, 0.0))
        if any(producer.finished.done() for producer in producers):
            break
        if time.perf_counter() - started >= len(per_second) + 1:
            per_second.append(tally.records - before)
            before = tally.records
            if on_second is not None:
                on_second(time.perf_counter() - started, tally)
    return per_second


def _report(tally: Tally, elapsed: float, per_second: Sequence[int]) -> LoadReport:
    latencies = sorted(tally.latencies)

    def percentile(share: float) -> float | None:
        return round(1000 * latencies[int(share * (len(latencies) - 1))], 3) if latencies else None

    rate = tally.records / elapsed
    ordered = sorted(per_second)
    return LoadReport(
        seconds=round(elapsed, 3),
        requests=tally.requests,
        records=tally.records,
        bytes=tally.bytes,
        refused=tally.refused,
        records_per_second=round(rate, 1),
        median_records_per_second=float(ordered[len(ordered) // 2]) if ordered else round(rate, 1),
        megabytes_per_second=round(tally.bytes / elapsed / 1e6, 2),
        latency_ms_p50=percentile(0.5),
        latency_ms_p99=percentile(0.99),
        latency_ms_max=percentile(1.0),
        failure=tally.failure,
    )
