"""One segment of a partition: hot in shared memory, on disk, or both.

The newest segment is always hot. Its bytes reach the disk by write-behind (`flushed` says how far);
once they are all there the memory may go, and the segment is cold. On disk a segment is the bare run of
record batches, which is also Kafka's own file format, with its index beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.log.index import INTERVAL, SparseIndex, Summary
from penstock.log.spares import SpareFiles
from penstock.shm import layout
from penstock.shm.memory import FLUSHED, MAX_TIME, WRITTEN, SegmentMemory
from penstock.wire import batch

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
PRODUCERS_SUFFIX: Final = ".producers"
_DATA: Final = layout.SEGMENT_HEADER
_BLOCK: Final = 4096
_DIRECT_MINIMUM: Final = 128 * 1024
"""A direct write waits for the device: below this size a buffered one is cheaper."""


class Segment:
    __slots__ = (
        "base_offset",
        "committed",
        "created_ms",
        "descriptor",
        "direct",
        "flushed",
        "index",
        "is_read",
        "max_timestamp",
        "memory",
        "next_offset",
        "path",
        "room",
        "sealed",
        "size",
    )

    def __init__(self, path: Path, base_offset: int, memory: SegmentMemory | None, created_ms: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.memory = memory
        self.size = 0
        self.room = memory.capacity if memory is not None else 0
        """Bytes that can still be appended; nothing once it is sealed."""
        self.committed = 0
        """Bytes that readers may have: the part below the high watermark."""
        self.flushed = 0
        """Bytes that write-behind has handed to the file system; set by `note_flushed`."""
        self.max_timestamp = batch.NO_TIMESTAMP
        self.created_ms = created_ms
        self.index: SparseIndex | None = SparseIndex()
        self.sealed = False
        self.descriptor = -1
        """The file that write-behind has open, used by its thread only."""
        self.direct = -1
        """The same file, opened for direct I/O; -1 when it isn't, or can't be."""
        self.is_read = False
        """Somebody may have one of its files open for reading: set before a file is opened, for good."""

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}..{self.next_offset}, {self.size} bytes)"

    @property
    def is_hot(self) -> bool:
        return self.memory is not None

    @property
    def evictable(self) -> bool:
        """Sealed, and every byte is on disk."""
        return self.memory is not None and self.sealed and self.flushed == self.size

    def append(
        self, records: batch.Buffer, base_offset: int, leader_epoch: int, next_offset: int, max_timestamp: int
    ) -> None:
        """Write one whole batch at the end. Bytes first, then the words that say they are there."""
        memory = self.memory
        assert memory is not None
        assert self.index is not None
        size = len(records)
        start = _DATA + self.size
        end = start + size
        memory.view[start:end] = records
        batch.stamp_fresh(memory.view, start, base_offset, size - batch.LENGTH_PREFIX, leader_epoch)
        if self.size >= self.index.next_at:
            self.index.add(base_offset, self.size, self.max_timestamp)
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            memory.words[MAX_TIME] = max_timestamp
        self.size += size
        self.room -= size
        self.next_offset = next_offset
        memory.words[WRITTEN] = self.size

    def extend(self, run: memoryview, headers: list[batch.BatchHeader]) -> None:
        """Write a run of whole batches that have their offsets and epochs already."""
        memory = self.memory
        assert memory is not None
        assert self.index is not None
        start = _DATA + self.size
        memory.view[start : start + len(run)] = run
        position = self.size
        latest = self.max_timestamp
        for header in headers:
            if position >= self.index.next_at:
                self.index.add(header.base_offset, position, latest)
            if header.max_timestamp > latest:
                latest = header.max_timestamp
            position += header.size
        if latest > self.max_timestamp:
            self.max_timestamp = latest
            memory.words[MAX_TIME] = latest
        self.size = position
        self.room -= len(run)
        self.next_offset = headers[-1].next_offset
        memory.words[WRITTEN] = position

    def cut(self, position: int, offset: int) -> None:
        """Leave nothing behind `position`, where `offset` would begin; nothing is written there again."""
        self.size = position
        self.committed = min(self.committed, position)
        self.note_flushed(min(self.flushed, position))
        self.next_offset = offset
        self.index = None  # made again from what is left, when it is needed
        if self.memory is not None:
            self.memory.words[WRITTEN] = position
        self.seal(offset)

    def note_flushed(self, position: int) -> None:
        """The file has this much. Noted in memory too: after a crash the file of that name may be older."""
        self.flushed = position
        if self.memory is not None:
            self.memory.words[FLUSHED] = position

    def seal(self, next_base: int) -> None:
        self.sealed = True
        self.room = 0
        if self.memory is not None:
            self.memory.seal(next_base)

    def bytes_between(self, start: int, end: int) -> memoryview:
        """The batches from position `start` to `end`, in place. The caller holds the memory."""
        assert self.memory is not None
        return self.memory.readable[_DATA + start : _DATA + end]

    def walk(self, start: int = 0) -> Iterator[batch.Located]:
        """The batches of a hot segment from a batch start on; positions count from the first batch."""
        for position, header in batch.walk(self.bytes_between(0, self.size), start, self.size):
            yield batch.Located(position, header)

    def position_of(self, offset: int) -> int:
        """Where the batch that holds `offset`, or the first one after it, begins. Hot segments."""
        view = self.bytes_between(0, self.size)
        position = self.load_index().position_for_offset(offset)
        while position < self.size:
            base, size = batch.read_place(view, position)
            if base + batch.read_last_offset_delta(view, position) >= offset:
                break
            position += size
        return position

    def end_within(self, start: int, limit: int) -> tuple[int, int]:
        """The last batch end that keeps start..end within `limit` bytes (one batch at least), and the
        offset there. Hot segments; the limit falls inside the committed part."""
        view = self.bytes_between(0, self.committed)
        position, offset = self.load_index().boundary_before(start + limit)
        if position <= start:
            position, offset = start, -1
        while position < self.committed:
            base, size = batch.read_place(view, position)
            if position + size - start > limit and position > start:
                return position, base
            offset = base + batch.read_last_offset_delta(view, position) + 1
            position += size
        return position, offset

    def load_index(self) -> SparseIndex:
        """The index, from memory, from disk, or made by a walk over the hot bytes."""
        if self.index is None:
            loaded = self.read_index_file()
            if loaded is not None:
                self.index = loaded[0]
            elif self.memory is not None:
                self.index = SparseIndex.build(self.memory.view, _DATA, _DATA + self.size)
            else:
                content = self.read_file()
                self.index = SparseIndex.build(content, 0, len(content))
        return self.index

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(INDEX_SUFFIX)

    @property
    def producers_path(self) -> Path:
        """Producers' state as it was where this segment begins."""
        return self.path.with_suffix(PRODUCERS_SUFFIX)

    def read_index_file(self) -> tuple[SparseIndex, Summary] | None:
        """The index on disk, if it is whole and about exactly these bytes."""
        self.is_read = True
        try:
            loaded = SparseIndex.decode(self.index_path.read_bytes())
        except OSError:
            return None
        if loaded is None or loaded[1].size != self.size:
            return None
        return loaded

    def summary(self) -> Summary:
        return Summary(self.size, self.next_offset, self.max_timestamp)

    # The rest runs on a disk thread, never on the event loop.

    def write_from(self, memory: SegmentMemory, start: int, end: int) -> None:
        """Copy bytes start..end, which are in `memory`, to the file. Raises OSError when the disk won't."""
        if self.descriptor < 0:
            self.descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        first_block = -(-start // _BLOCK) * _BLOCK
        last_block = end // _BLOCK * _BLOCK
        if last_block - first_block >= _DIRECT_MINIMUM and self._open_direct():
            _write_all(self.descriptor, memory, start, first_block)
            _write_all(self.direct, memory, first_block, last_block)
            start = last_block
        _write_all(self.descriptor, memory, start, end)

    def _open_direct(self) -> bool:
        """Whole blocks go from shared memory to the device without a copy: a twentieth of the CPU of a
        buffered write here, and no page cache for what is in memory anyway."""
        if self.direct < 0:
            try:
                self.direct = os.open(self.path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:
                return False  # this file system has none
        return True

    def sync(self) -> None:
        if self.descriptor >= 0:
            os.fdatasync(self.descriptor)

    def finish_file(self, spares: SpareFiles) -> None:
        """All bytes are there: write the index and let the file go."""
        if self.index is not None:
            spares.write(self.index_path, self.index.encode(self.summary()))
        self.close_file()

    def close_file(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        if self.direct >= 0:
            os.close(self.direct)
            self.direct = -1

    def cut_file(self) -> None:
        """After `cut`: the file must not have more than the segment."""
        self.close_file()
        if self.path.exists() and self.path.stat().st_size > self.size:
            os.truncate(self.path, self.size)
        self.index_path.unlink(missing_ok=True)

    def position_on_disk(self, offset: int) -> int:
        """As `position_of`, for a segment that is not in memory."""
        content = self.read_file()
        for position, header in batch.walk(content, 0, self.size):
            if header.next_offset > offset:
                return position
        return self.size

    def delete_files(self, spares: SpareFiles | None = None) -> None:
        self.close_file()
        # The log last: killed half-way, no snapshot is left for another segment of that name.
        for path in (self.producers_path, self.index_path, self.path):
            if spares is None:
                path.unlink(missing_ok=True)
            else:
                spares.drop(path, lambda: self.is_read)

    def read_file(self) -> bytes:
        """What the file has of the segment; after a cut it has more than that until the disk gets to it."""
        self.is_read = True
        return self.path.read_bytes()[: self.size]

    def read_producers_file(self) -> bytes:
        self.is_read = True
        return self.producers_path.read_bytes()

    def read_cold(self, offset: int, limit: int, end: int, ahead: int = 0) -> bytes:
        """Whole batches from the one that holds `offset` on, `limit` bytes or one batch, none behind `end`:
        the file may have what was cut from the log, or is not committed.

        The device is asked for `ahead` bytes more, which `read_cached` finds then: what write-behind wrote
        directly is not in the page cache.
        """
        return bytes(self._read_run(offset, limit, end, self.load_index(), 0, ahead))

    def read_cached(self, offset: int, limit: int, end: int) -> memoryview:
        """The same for the event loop: what the page cache has of it, which may be less, or nothing.

        A disk thread takes milliseconds to get the interpreter from a busy loop, this a tenth of one.
        """
        if self.index is None:
            return memoryview(b"")
        try:
            return self._read_run(offset, limit, end, self.index, os.RWF_NOWAIT, 0)
        except OSError:  # nothing there, or a file system that can't tell
            return memoryview(b"")

    def _read_run(
        self, offset: int, limit: int, end: int, index: SparseIndex, flags: int, ahead: int
    ) -> memoryview:
        self.is_read = True
        reach = limit + INTERVAL
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            position = index.position_for_offset(offset)
            chunk = _read(descriptor, position, reach, end, flags)
            if position and not index.fits(position, chunk, 0):
                if flags:
                    return chunk[:0]  # to walk the whole file is not for the event loop
                position, chunk = 0, _read(descriptor, 0, reach, end, flags)
            at = 0
            while True:
                if len(chunk) - at < batch.HEADER_SIZE:
                    position, at = position + at, 0
                    chunk = _read(descriptor, position, reach, end, flags)
                    if len(chunk) < batch.HEADER_SIZE:
                        return chunk[:0]
                base, size = batch.read_place(chunk, at)
                if size < batch.HEADER_SIZE:
                    return chunk[:0]
                if base + batch.read_last_offset_delta(chunk, at) >= offset:
                    break
                at += size
            if size > len(chunk) - at:
                position, at = position + at, 0
                chunk = _read(descriptor, position, max(limit, size), end, flags)
            whole, _ = batch.whole_run(chunk, at, min(len(chunk), at + max(limit, size)))
            ahead = min(ahead, end - position - whole)
            if ahead > 0:
                os.posix_fadvise(descriptor, position + whole, ahead, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)
        return chunk[at:whole]


def _read(descriptor: int, position: int, size: int, end: int, flags: int) -> memoryview:
    buffer = bytearray(max(0, min(size, end - position)))
    count = os.preadv(descriptor, [buffer], position, flags)
    return memoryview(buffer)[:count]


def _write_all(descriptor: int, memory: SegmentMemory, start: int, end: int) -> None:
    view = memory.view[_DATA + start : _DATA + end]
    while start < end:
        count = os.pwrite(descriptor, view, start)
        start += count
        view = view[count:]
