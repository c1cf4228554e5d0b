"""Chunks, the unit of the paper's producers: a record batch, and the request that carries one per partition.

Encoded before the load begins; for each request only the timestamps and the CRC are made anew. No I/O.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Final

from crc32c import crc32c

from penstock.load.content import filler
from penstock.wire import batch
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
ANSWERED_PARTITION: Final = 30
"""Bytes of index, error code, base offset, append time and log start offset in the response."""
_RECORD_OVERHEAD: Final = 10
"""About what a record's lengths, deltas and counts take besides its value."""
TIMEOUT_MS: Final = 30_000
_DIFFERENT: Final = 64
_DIFFERENT_BYTES: Final = 32 << 20


def make_chunk(
    chunk_bytes: int, record_bytes: int, compression: Compression, values: Iterator[bytes] | None = None
) -> tuple[bytes, int]:
    """A batch of about `chunk_bytes` before compression, and how many records it holds."""
    count = max(1, (chunk_bytes - batch.HEADER_SIZE) // (record_bytes + _RECORD_OVERHEAD))
    now = time.time_ns() // 1_000_000
    chosen = itertools.islice(values or filler(record_bytes), count)
    records = [Record(offset, now, None, value) for offset, value in enumerate(chosen)]
    return encode_batch(records, compression=compression), count


def different(request_bytes: int) -> int:
    """How many different requests of that size a connection has in turns: what readers see should be neither
    a few records over and over, nor should it take much memory or long to make."""
    return max(1, min(_DIFFERENT, _DIFFERENT_BYTES // request_bytes))


class ChunkRequest:
    """A produce request with one chunk for each partition, and where its changing parts lie."""

    def __init__(self, topic: str, partitions: Sequence[int], chunk: bytes, records: int, acks: int) -> None:
        self._chunk_size = len(chunk)
        self.records = records * len(partitions)
        self.chunk_bytes = len(chunk) * len(partitions)
        name = topic.encode()
        frame = bytearray(_HEAD.pack(0, _PRODUCE, _VERSION, 0, len(_CLIENT_ID)) + _CLIENT_ID)
        frame += _ACKS_TIMEOUT.pack(-1, acks, TIMEOUT_MS, 1)
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

    def stamped(self, correlation: int, now_ms: int) -> bytearray:
        """The frame to send, its records made now. The same memory every time."""
        frame = self._frame
        _INT.pack_into(frame, _CORRELATION_AT, correlation & 0x7FFFFFFF)
        crc = None
        for start in self._batches:
            _TIMESTAMPS.pack_into(frame, start + batch.BASE_TIMESTAMP, now_ms, now_ms)
            if crc is None:  # the chunks are all alike
                crc = crc32c(self._view[start + batch.ATTRIBUTES : start + self._chunk_size])
            _CRC.pack_into(frame, start + batch.CRC, crc)
        return frame

    def first_error(self, response: bytearray, start: int) -> tuple[int, int] | None:
        """(partition, error code) of the first chunk that was refused."""
        at = start + self.first_answer
        for _ in self.partitions:
            (code,) = _SHORT.unpack_from(response, at + 4)
            if code:
                return _INT.unpack_from(response, at)[0], code
            at += ANSWERED_PARTITION
        return None
