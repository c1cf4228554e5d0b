"""What is read of a segment's file: whole batches, from the right one on, no more than was asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.log.index import INTERVAL, SparseIndex
from penstock.log.segment import Segment
from penstock.wire import batch
from penstock.wire.records import Record, encode_batch

SIZES = [100] * 400 + [30_000, 100, 200_000, 100, 100] + [900] * 300
"""Of the batches' values: many between two entries of the index, some larger than what is read at a time."""


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    content = b"".join(
        encode_batch([Record(base, 1, None, b"v" * size), Record(base + 1, 1, None, b"")], base_offset=base)
        for base, size in zip(range(100, 100 + 2 * len(SIZES), 2), SIZES, strict=True)
    )
    made = Segment(tmp_path / "100.log", 100, None, 0)
    made.path.write_bytes(content)
    made.size = made.committed = len(content)
    made.next_offset = 100 + 2 * len(SIZES)
    made.index = SparseIndex.build(content, 0, len(content))
    return made


def expected(segment: Segment, offset: int, limit: int, end: int) -> bytes:
    """By a walk over all of it."""
    content = segment.path.read_bytes()[:end]
    start = stop = -1
    for position, header in batch.walk(content, 0, len(content)):
        if header.next_offset <= offset:
            continue
        if start < 0:
            start = position
        elif position + header.size - start > limit:
            break
        stop = position + header.size
    return content[start:stop] if start >= 0 else b""


def tells_what_is_cached(path: Path) -> bool:
    """Not every file system does; then the disk thread reads all."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except OSError:
        return False
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("limit", [1, 61, 5_000, INTERVAL, 100_000, 1 << 20])
def test_whole_batches_from_the_one_with_the_offset_on_within_the_limit(segment: Segment, limit: int) -> None:
    for offset in range(100, segment.next_offset, 7):
        wanted = expected(segment, offset, limit, segment.size)
        assert segment.read_cold(offset, limit, segment.size) == wanted
        cached = segment.read_cached(offset, limit, segment.size)
        assert cached == (wanted if tells_what_is_cached(segment.path) else b""), "it was read a moment ago"


@pytest.mark.parametrize("end", [0, 30, 5_000, 60_000, 300_000])
def test_nothing_behind_the_end(segment: Segment, end: int) -> None:
    for offset in range(100, segment.next_offset, 7):
        assert segment.read_cold(offset, 1 << 20, end) == expected(segment, offset, 1 << 20, end)


def test_a_file_that_ends_too_early_or_is_none_of_ours_is_no_endless_walk(segment: Segment) -> None:
    whole = segment.path.read_bytes()
    segment.path.write_bytes(whole[: len(whole) // 2])
    assert segment.read_cold(segment.next_offset - 1, 1 << 20, segment.size) == b""
    segment.path.write_bytes(bytes(len(whole)))
    assert segment.read_cold(500, 1 << 20, segment.size) == b""
    assert not segment.read_cached(500, 1 << 20, segment.size)


def test_the_loop_does_not_walk_a_file_that_its_index_is_not_of(segment: Segment) -> None:
    """Compaction swaps files; the walk from the beginning is the disk thread's."""
    content = segment.path.read_bytes()
    segment.path.write_bytes(content[batch.read_place(content, 0)[1] :])
    wanted = expected(segment, 500, 1 << 20, segment.size)
    assert wanted
    assert not segment.read_cached(500, 1 << 20, segment.size)
    assert segment.read_cold(500, 1 << 20, segment.size) == wanted


def test_the_loop_waits_neither_for_the_device_nor_for_an_index(segment: Segment) -> None:
    descriptor = os.open(segment.path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    cached = bytes(segment.read_cached(100, 1 << 20, segment.size))
    wanted = expected(segment, 100, 1 << 20, segment.size)
    assert wanted.startswith(cached)  # the whole of it only where the file system keeps all in memory
    assert len(cached) in (0, len(wanted))
    segment.index = None
    assert not segment.read_cached(100, 1 << 20, segment.size)
    assert segment.read_cold(100, 1 << 20, segment.size) == wanted
    segment.path.unlink()
    assert not segment.read_cached(100, 1 << 20, segment.size)
