"""A segment's sparse index: from offsets and from times to positions, one entry per 16 KiB or so.

An entry says: at `position` begins the batch with base offset `offset`, and the largest timestamp of
everything before it in this segment is `time`. Kept in memory while the segment is hot, written beside
it on disk when it is sealed, and built anew by a walk whenever the file is missing or doubtful.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.wire import batch
from penstock.wire.batch import Buffer

INTERVAL: Final = 16 * 1024
_MAGIC: Final = b"PSTKIDX1"
_SUMMARY: Final = struct.Struct("<8sIIqqq")


class Summary(NamedTuple):
    """What a sealed segment's index file says of the segment as a whole."""

    size: int
    next_offset: int
    max_timestamp: int


class SparseIndex:
    __slots__ = ("next_at", "offsets", "positions", "times")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")
        self.next_at = 0
        """The position from which on the next entry is wanted; the append path looks before it calls."""

    def add(self, offset: int, position: int, max_timestamp_before: int) -> None:
        """Called for every batch; keeps one in a while."""
        if position >= self.next_at:
            self.offsets.append(offset)
            self.positions.append(position)
            self.times.append(max_timestamp_before)
            self.next_at = position + INTERVAL

    def position_for_offset(self, offset: int) -> int:
        """Where to begin walking for the batch that holds `offset`."""
        entry = bisect_right(self.offsets, offset) - 1
        return self.positions[entry] if entry >= 0 else 0

    def position_for_time(self, timestamp: int) -> int:
        """Where to begin walking for the first record at or after `timestamp`."""
        entry = bisect_left(self.times, timestamp) - 1
        return self.positions[entry] if entry >= 0 else 0

    def boundary_before(self, position: int) -> tuple[int, int]:
        """(position, offset) of the last known batch start at or before `position`; (0, -1) if none."""
        entry = bisect_right(self.positions, position) - 1
        return (self.positions[entry], self.offsets[entry]) if entry >= 0 else (0, -1)

    def fits(self, position: int, buffer: Buffer, at: int) -> bool:
        """Whether the batch known at `position` is what is at `at` in the buffer: compaction swaps files."""
        _, base = self.boundary_before(position)
        return len(buffer) - at >= batch.HEADER_SIZE and batch.read_place(buffer, at)[0] == base

    @classmethod
    def build(cls, buffer: Buffer, start: int, end: int) -> SparseIndex:
        index = cls()
        max_timestamp = batch.NO_TIMESTAMP
        for position, header in batch.walk(buffer, start, end):
            index.add(header.base_offset, position - start, max_timestamp)
            max_timestamp = max(max_timestamp, header.max_timestamp)
        return index

    def encode(self, summary: Summary) -> bytes:
        body = self.offsets.tobytes() + self.positions.tobytes() + self.times.tobytes()
        head = struct.pack("<qqq", *summary) + body
        return _MAGIC + struct.pack("<II", len(self.offsets), crc32c(head)) + head

    @classmethod
    def decode(cls, encoded: bytes) -> tuple[SparseIndex, Summary] | None:
        """None for anything but a whole index file."""
        if len(encoded) < _SUMMARY.size:
            return None
        magic, count, crc, size, next_offset, max_timestamp = _SUMMARY.unpack_from(encoded)
        if magic != _MAGIC or len(encoded) != _SUMMARY.size + 24 * count or crc32c(encoded[16:]) != crc:
            return None
        index = cls()
        start = _SUMMARY.size
        for column in (index.offsets, index.positions, index.times):
            column.frombytes(encoded[start : start + 8 * count])
            start += 8 * count
        if count:
            index.next_at = index.positions[-1] + INTERVAL
        return index, Summary(size, next_offset, max_timestamp)
