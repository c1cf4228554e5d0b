"""From times to offsets: the first record at or after a time, and the one with the largest time."""

from __future__ import annotations

from typing import NamedTuple

from penstock.log.partition import PartitionLog
from penstock.log.segment import Segment
from penstock.wire import batch
from penstock.wire.batch import Buffer
from penstock.wire.records import decode_records


class Found(NamedTuple):
    offset: int
    timestamp: int


def candidates(log: PartitionLog, timestamp: int) -> list[Segment]:
    """Segments that may hold the first record at or after `timestamp`, oldest first."""
    return [
        segment
        for segment in log.segments
        if segment.committed and segment.max_timestamp >= timestamp and segment.next_offset > log.log_start
    ]


def newest_time(log: PartitionLog) -> int:
    """The largest timestamp in the committed log, -1 when there is none."""
    return max((segment.max_timestamp for segment in log.segments if segment.committed), default=-1)


def content(segment: Segment) -> Buffer:
    """The committed bytes of a segment. Reads a file when it is cold: call it on a disk thread then."""
    if segment.memory is not None:
        return segment.bytes_between(0, segment.committed)
    return segment.read_file()[: segment.committed]


def first_at(segment: Segment, buffer: Buffer, timestamp: int, log_start: int) -> Found | None:
    index = segment.load_index()
    view = memoryview(buffer)
    start = index.position_for_time(timestamp)
    if not index.fits(start, view, start):
        start = 0
    for position, header in batch.walk(view, start, len(view)):
        if header.max_timestamp < timestamp or header.last_offset < log_start or not header.record_count:
            continue
        for record in decode_records(view[position : position + header.size]):
            if record.timestamp >= timestamp and record.offset >= log_start:
                return Found(record.offset, record.timestamp)
    return None
