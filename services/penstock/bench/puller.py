"""A lean reader by pull: raw Fetch requests on one blocking socket, batches counted and not decoded here.

It stands for the least that pulling can cost on the client's side, so that what is measured is the broker.
Two requests are on their way at once, each for half of the partitions, so that neither side waits.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.wire import batch
from penstock.wire.errors import ErrorCode

_FETCH: Final = 1
_VERSION: Final = 11  # the last one before flexible encodings
_CLIENT_ID: Final = b"penstock-bench"
_HEAD: Final = struct.Struct(">hhih")
_LIMITS: Final = struct.Struct(">iiiibii")
_PARTITION: Final = struct.Struct(">iiqqi")
_INT: Final = struct.Struct(">i")
_ANSWER: Final = struct.Struct(">ihqqq")
_SHORT: Final = struct.Struct(">h")
_MAX_WAIT_MS: Final = 100
_ISOLATION_ALL: Final = 0
RESPONSE_BYTES: Final = 8 << 20
PARTITION_BYTES: Final = 1 << 20


class PullFailed(Exception):
    """The broker refused a fetch; the text says with what."""


class Pulled(NamedTuple):
    records: int
    bytes: int


class _Half:
    """The partitions of one request, and where each is."""

    def __init__(self, partitions: Sequence[int], offsets: Mapping[int, int]) -> None:
        self.offsets = {partition: offsets[partition] for partition in partitions}


class Puller:
    """Reads partitions of one broker from given offsets on; `again`: from offset 0 after their end."""

    def __init__(
        self,
        address: str,
        topic: str,
        offsets: Mapping[int, int],
        fetch: int = PARTITION_BYTES,
        *,
        again: bool = True,
        visit: Callable[[memoryview], None] | None = None,
    ) -> None:
        """`visit` gets every whole batch, while it is in the buffer."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 30)
        self._topic = topic.encode()
        self._fetch = fetch
        self._again = again
        self._visit = visit
        everything = list(offsets)
        self._halves = [_Half(part, offsets) for part in (everything[::2], everything[1::2]) if part]
        self._buffer = bytearray(RESPONSE_BYTES * 2)
        self._view = memoryview(self._buffer)
        for half in self._halves:
            self._ask(half)
        self._turn = 0

    def pull(self) -> Pulled:
        """Take the next answer and ask for what comes after it."""
        half = self._halves[self._turn]
        self._turn = (self._turn + 1) % len(self._halves)
        self._receive(0, 4)
        size = _INT.unpack_from(self._buffer, 0)[0]
        if size > len(self._buffer):
            raise PullFailed(f"an answer of {size} bytes")
        self._receive(0, size)
        pulled = self._take(half)
        self._ask(half)
        return pulled

    def close(self) -> None:
        self._socket.close()

    def _ask(self, half: _Half) -> None:
        frame = bytearray(_HEAD.pack(_FETCH, _VERSION, 0, len(_CLIENT_ID)) + _CLIENT_ID)
        frame += _LIMITS.pack(-1, _MAX_WAIT_MS, 1, RESPONSE_BYTES, _ISOLATION_ALL, 0, -1)
        frame += _INT.pack(1) + _SHORT.pack(len(self._topic)) + self._topic + _INT.pack(len(half.offsets))
        for partition, offset in half.offsets.items():
            frame += _PARTITION.pack(partition, -1, offset, -1, self._fetch)
        frame += _INT.pack(0) + _SHORT.pack(0)
        self._socket.sendall(_INT.pack(len(frame)) + frame)

    def _receive(self, start: int, size: int) -> None:
        end = start + size
        while start < end:
            count = self._socket.recv_into(self._view[start:end])
            if not count:
                raise PullFailed("the broker closed the connection")
            start += count

    def _take(self, half: _Half) -> Pulled:
        """Behind correlation id, throttle time, error, session and topic name come the partitions."""
        records = size = 0
        buffer = self._buffer
        at = 4 + 4 + 2 + 4 + 4 + 2 + len(self._topic)
        count = _INT.unpack_from(buffer, at)[0]
        at += 4
        for _ in range(count):
            partition, error, high_watermark, _, log_start = _ANSWER.unpack_from(buffer, at)
            before = half.offsets[partition]
            if error == ErrorCode.offset_out_of_range and before < log_start:
                before = log_start  # retention was faster: what is gone is skipped, and not counted
            elif error:
                raise PullFailed(f"partition {partition}: {ErrorCode(error).name}")
            at += _ANSWER.size
            aborted = _INT.unpack_from(buffer, at)[0]
            at += 4 + 16 * max(aborted, 0) + 4
            length = _INT.unpack_from(buffer, at)[0]
            at += 4
            after = self._walk(at, at + length, before)
            records += after - before
            size += length
            half.offsets[partition] = 0 if self._again and after >= high_watermark else after
            at += length
        return Pulled(records, size)

    def _walk(self, position: int, end: int, offset: int) -> int:
        """The offset behind the last whole batch of a run; Kafka may cut the last one short."""
        while end - position >= batch.HEADER_SIZE:
            base, size = batch.read_place(self._buffer, position)
            if size > end - position:
                break
            if self._visit is not None:
                self._visit(self._view[position : position + size])
            offset = base + batch.read_last_offset_delta(self._buffer, position) + 1
            position += size
        return offset
