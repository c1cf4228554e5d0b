"""One partition, followed: from the commit word to the next batch, across segments and recycled memory.

`LogReader` has one for each of its partitions. It does no waiting; `take` gives a batch or None.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from penstock.shm import layout
from penstock.shm.control import NodeControl, PartitionControl
from penstock.shm.cursors import CursorFile, Slot
from penstock.shm.layout import WORD, PartitionState
from penstock.shm.mapped import DATA, MappedSegment
from penstock.shm.places import (
    AtTime,
    BrokerGone,
    BrokerRestarted,
    CorruptLog,
    Edge,
    Fenced,
    Gone,
    NotInMemory,
    Overwritten,
    Place,
    Start,
)
from penstock.wire import batch
from penstock.wire.records import CorruptRecords, Record, decode_records

_LOOKS: Final = 5
"""How often a segment may vanish between the listing and the mapping before we say that it is not there."""
_COMMIT: Final = layout.PART_COMMIT // WORD
_INCARNATION: Final = layout.PART_INCARNATION // WORD
_STATE: Final = layout.PART_STATE // WORD

# base offset, batch length, (epoch), magic, (crc, attributes), last offset delta, (...), record count
_HEAD: Final = struct.Struct(">qi4xb6xi30xi")


class Batch(NamedTuple):
    """A committed record batch (a NamedTuple because one is made per batch, hot path)."""

    place: Place
    start_offset: int
    """The first offset that was asked for; records below it, if any, were not."""
    next_offset: int
    data: bytes | memoryview
    """The batch as Kafka defines it. In place, it is good until the reader is used again."""


class _Head(NamedTuple):
    base_offset: int
    size: int
    next_offset: int
    record_count: int
    """Fewer than offsets after compaction, and none at all where offsets were lost."""


class Follower:
    """The way through one partition. `offset` is what the consumer wants next; the rest finds it.

    The segment, the position in it and the offset there (`_walked`) belong together. Going back means
    setting `offset` alone: below `_walked`, the place is looked up again.
    """

    def __init__(self, broker: Path, place: Place) -> None:
        self.place = place
        self.offset = 0
        self._directory = layout.partition_dir(broker, place.topic_id, place.partition)
        self._segment: MappedSegment | None = None
        self._position = 0
        self._end = 0
        self._walked = 0
        self._committed = 0
        self._lent: int | None = None
        self._records = 0
        self._bytes = 0

    def attach(self, node: NodeControl, incarnation: int, cursor: CursorFile) -> None:
        """Begin, or go on, under this incarnation of the broker. Raises Interrupted if it may not be."""
        self.verify()
        try:
            control = PartitionControl.open(self._directory)
        except FileNotFoundError:
            raise Fenced(self.place, self.offset, "not served by this broker") from None
        if control.topic_id != self.place.topic_id or control.partition != self.place.partition:
            raise CorruptLog(self.place, self.offset, f"{self._directory} is another partition's")
        self._node = node
        self._control = control
        self._words = control.words
        self._incarnation = incarnation
        if control.incarnation != incarnation:
            # LIVE under an old incarnation is what kill -9 leaves behind (rule S9).
            raise Fenced(self.place, self.offset, "part.ctl is of another incarnation than node.ctl")
        self._check_served()
        self._slot: Slot = cursor.take_slot(self.place.topic_id, self.place.partition, self.offset)
        self._segment = None
        self._committed = 0

    def start(self, start: Start) -> None:
        control = self._control
        if start is Edge.EARLIEST:
            self.seek(control.log_start)
        elif start is Edge.LATEST:
            self.seek(control.committed)
        elif isinstance(start, AtTime):
            self.seek(self._offset_at(start.milliseconds))
        else:
            assert isinstance(start, int)
            self.seek(start)
        if control.oldest_base >= 0 and control.log_start <= self.offset:
            with contextlib.suppress(NotInMemory):  # told when it is read
                self._locate()  # now rather than when the first record comes, which is in a hurry

    def seek(self, offset: int) -> None:
        if offset < 0:
            raise ValueError(f"offset {offset}")
        self.verify()
        self._publish()
        self._leave_segment()
        self.offset = offset
        self._slot.finish(offset, 0, 0)

    @property
    def lag(self) -> int:
        return max(0, self._control.committed - self.offset)

    def take(self, *, copy: bool) -> Batch | None:
        """The next committed batch, or None when there is none yet."""
        if self._lent is not None:
            self.verify()
        if self.offset < self._walked:
            self._segment = None
        while True:
            if self.offset >= self._committed and not self._look():
                return None
            segment = self._segment or self._locate()
            position = self._position
            if position >= self._end:
                self._advance(segment)
                continue
            head = self._head(segment, position, self._end, self._walked)
            if head is None or head.next_offset > self._committed:  # the watermark is always a batch's end
                self._no_batch(segment, position)
                continue
            base, size, following, count = head
            if following <= self.offset:
                self._position, self._walked = position + size, following
                continue
            start = DATA + position
            data: bytes | memoryview = segment.view[start : start + size]
            if copy:
                data = bytes(data)
            if not segment.intact:
                self._segment = None
                continue
            if not copy:
                self._lent = self.offset
            first = base if base > self.offset else self.offset
            self._position, self._walked, self.offset = position + size, following, following
            self._records += min(count, following - first)
            self._bytes += size
            return Batch(self.place, first, following, data)

    def verify(self) -> None:
        """Make sure that what was handed out in place was good to the end."""
        lent, self._lent = self._lent, None
        if lent is not None and self._segment is not None and not self._segment.intact:
            self.offset = lent
            self._leave_segment()
            raise Overwritten(self.place, lent, "the segment was taken back while it was read in place")

    def close(self) -> None:
        self._publish()
        self._slot.free()
        self._segment = None

    # Finding the place

    def _locate(self) -> MappedSegment:
        """The segment that holds `offset`, pinned, and the position of its batch in it."""
        for _ in range(_LOOKS):
            base = max((base for base in self._bases() if base <= self.offset), default=None)
            if base is None:
                break
            segment = self._pin(base)
            if segment is not None and self._find(segment):
                return segment
        self._leave_segment()
        self._check_served()  # a partition that was deleted or moved is the better reason
        raise self._not_in_memory()

    def _bases(self) -> list[int]:
        """Base offsets of the segments in memory, in no order."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        suffix = layout.SEGMENT_SUFFIX
        stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
        return [int(stem) for stem in stems if stem.isdigit()]

    def _pin(self, base: int) -> MappedSegment | None:
        """Pin, then map and check: whoever retires it from now on sees the pin a tick later (rule S3)."""
        self._slot.pin(base)
        return MappedSegment.open(self._directory, self.place, base)

    def _find(self, segment: MappedSegment) -> bool:
        """Walk to the batch of `offset`, or to where it will be; False if it isn't in this segment."""
        extent = self._extent(segment, 0)
        if extent is None:
            return False
        written, next_base = extent
        if -1 < next_base <= self.offset:
            return False
        position, walked = 0, segment.base
        while position < written:
            head = self._head(segment, position, written, walked)
            if head is None:
                return False
            if head.next_offset > self.offset:
                break
            position, walked = position + head.size, head.next_offset
        if not segment.intact:
            return False
        self._segment = segment
        self._position, self._end, self._walked = position, written, walked
        return True

    def _head(self, segment: MappedSegment, position: int, written: int, walked: int) -> _Head | None:
        """The batch at `position`, as far as it must be known; None if the memory went away under us."""
        left = written - position
        if left >= batch.HEADER_SIZE:
            base, length, magic, delta, count = _HEAD.unpack_from(segment.view, DATA + position)
            size = length + batch.LENGTH_PREFIX
            if magic == 2 and batch.HEADER_SIZE <= size <= left and delta >= 0 and base >= walked:
                return _Head(base, size, base + delta + 1, count)
        if segment.intact:
            self._check_served()
            raise self._corrupt(segment, position)
        return None

    def _advance(self, segment: MappedSegment) -> None:
        """At the end of what we know of the segment: more of it, the next one, or the place anew."""
        self._publish()
        extent = self._extent(segment, self._position)
        if extent is None:
            self._segment = None
            return
        written, next_base = extent
        if written > self._position:
            self._end = written
            return
        if next_base < self._walked or next_base <= segment.base:
            # A committed batch must follow, and here is neither a batch nor the name of a segment.
            self._no_batch(segment, self._position)
            return
        self._segment = self._pin(next_base)  # None: then the place is looked up by offset
        self._position, self._end, self._walked = 0, 0, next_base
        self.offset = max(self.offset, next_base)
        self._look()

    def _offset_at(self, milliseconds: int) -> int:
        """See `AtTime`. Only memory is looked at; if what is on disk could be meant, NotInMemory."""
        start, oldest, committed = self._control.log_start, self._control.oldest_base, self._control.committed
        # While nothing older than the time was seen in memory, the first record may be on disk.
        unsure = start < committed and not 0 <= oldest <= start
        found = committed
        for base in sorted(self._bases()):
            segment = self._pin(base)
            newest_time = -1 if segment is None else segment.max_time
            if segment is not None and newest_time >= milliseconds:
                for content in self._copies(segment, committed):
                    found = self._first_at(content, milliseconds, start, committed)
                    if found < committed:
                        break
                    unsure = False
            if found < committed:
                break
            if segment is None or segment.retired:
                unsure = True  # evicted while we looked
            elif 0 <= newest_time < milliseconds:
                unsure = False
        if unsure:
            raise NotInMemory(self.place, start, f"time {milliseconds} may be on disk, ask the broker")
        return found

    def _first_at(self, content: bytes, milliseconds: int, start: int, default: int) -> int:
        """The offset of a batch's first record at or after both a time and an offset."""
        header = batch.read_header(content)
        if header.max_timestamp >= milliseconds:
            for record in self.decode(content, header.base_offset):
                if record.timestamp >= milliseconds and record.offset >= start:
                    return record.offset
        return default

    def _copies(self, segment: MappedSegment, committed: int) -> Iterator[bytes]:
        """The committed batches of a segment, each copied and checked."""
        extent = self._extent(segment, 0)
        position, walked = 0, segment.base
        while extent is not None and position < extent[0] and walked < committed:
            head = self._head(segment, position, extent[0], walked)
            if head is None:
                return
            content = bytes(segment.view[DATA + position : DATA + position + head.size])
            if not segment.intact:
                return
            yield content
            position, walked = position + head.size, head.next_offset

    def decode(self, content: bytes, offset: int) -> list[Record]:
        try:
            return decode_records(content)
        except CorruptRecords as error:
            raise CorruptLog(self.place, offset, str(error)) from error

    # What the control words say

    def _look(self) -> bool:
        """Load the commit word and what it counts under; is there anything to read?"""
        self._publish()
        self._committed = committed = self._words[_COMMIT]
        self._check_served()
        if committed <= self.offset:
            return False
        if self.offset < self._control.log_start:
            self._leave_segment()
            raise self._not_in_memory()
        return True

    def _check_served(self) -> None:
        if self._words[_INCARNATION] != self._incarnation:
            raise BrokerRestarted(self.place, self.offset, "the broker was started anew")
        if self._node.incarnation != self._incarnation:
            raise BrokerGone(self.place, self.offset, "the broker stopped")
        state = self._words[_STATE]
        if state == PartitionState.LIVE:
            return
        if state == PartitionState.GONE:
            raise Gone(self.place, self.offset, "the partition was deleted")
        raise Fenced(self.place, self.offset, f"the leader is elsewhere, or unsure (state {state})")

    def _publish(self) -> None:
        """Tell the broker how far we have come, once for many batches."""
        if self._bytes:
            self._slot.finish(self.offset, self._records, self._bytes)
            self._records = self._bytes = 0

    # Bad ends

    def _extent(self, segment: MappedSegment, position: int) -> tuple[int, int] | None:
        try:
            return segment.extent(position)
        except ValueError as error:
            raise CorruptLog(self.place, self.offset, str(error)) from None

    def _no_batch(self, segment: MappedSegment, position: int) -> None:
        """There should be a batch at `position`: the memory went away, or it lies."""
        if not segment.retired:
            self._check_served()
            raise self._corrupt(segment, position)
        self._segment = None

    def _corrupt(self, segment: MappedSegment, position: int) -> CorruptLog:
        return CorruptLog(
            self.place, self.offset, f"no whole batch at byte {position} of segment {segment.base}"
        )

    def _not_in_memory(self) -> NotInMemory:
        start = self._control.log_start
        reason = "not in memory, pull it" if self.offset >= start else f"deleted, the log starts at {start}"
        return NotInMemory(self.place, self.offset, reason)

    def _leave_segment(self) -> None:
        self._segment = None
        self._slot.unpin()
