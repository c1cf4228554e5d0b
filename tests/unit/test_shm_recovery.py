"""Rule S6: recovery looks only at what the words say was written; old batches above it are not there."""

from __future__ import annotations

from pathlib import Path

from penstock.log.recovery import Recovered, recover
from penstock.log.state import PartitionRecord
from penstock.shm import layout
from penstock.shm.memory import WRITTEN, SegmentMemory
from penstock.wire import batch
from shm_log import MemoryLog


def _recycled(memory: MemoryLog) -> SegmentMemory:
    """A log whose newest segment is in memory that was full of its older batches."""
    memory.append(200)
    memory.evict()
    memory.collect(set())
    newest = memory.log.segments[-1]
    while memory.log.segments[-1] is newest:
        memory.append()
    memory.append()
    recycled = memory.log.segments[-1].memory
    assert recycled is not None
    assert recycled.generation > 2
    return recycled


def _recover(memory: MemoryLog, tmp_path: Path) -> Recovered:
    directory = layout.partition_dir(memory.directory, memory.place.topic_id, 0)
    record = PartitionRecord(memory.place.topic_id, 0)
    return recover(directory, tmp_path / "disk" / "0", record, 0)


def _plant(memory: MemoryLog, recycled: SegmentMemory) -> int:
    """Make the old batch behind the newest one look like its successor; its CRC stays good."""
    position = layout.SEGMENT_HEADER + recycled.written
    base, size = batch.read_place(recycled.view, position)
    assert base != memory.log.log_end
    batch.stamp(recycled.view, position, memory.log.log_end, memory.log.leader_epoch)
    assert batch.crc_matches(recycled.view[position : position + size])
    return size


def test_s6_old_batches_above_the_written_word_are_ignored(tmp_path: Path) -> None:
    memory = MemoryLog(tmp_path)
    recycled = _recycled(memory)
    _plant(memory, recycled)
    found = _recover(memory, tmp_path)
    assert found.log_end == found.committed == memory.log.log_end
    assert found.segments[-1].size == memory.log.segments[-1].size


def test_s6_nothing_but_the_word_stands_between_recovery_and_an_old_batch(tmp_path: Path) -> None:
    """If this ever fails, the test above can't fail either."""
    memory = MemoryLog(tmp_path)
    recycled = _recycled(memory)
    recycled.words[WRITTEN] += _plant(memory, recycled)
    assert _recover(memory, tmp_path).log_end == memory.log.log_end + 10


def test_s6_a_batch_that_was_written_but_not_announced_is_not_there(tmp_path: Path) -> None:
    """Killed between the bytes and the word."""
    memory = MemoryLog(tmp_path)
    memory.append(5)
    newest = memory.log.segments[-1].memory
    assert newest is not None
    before = newest.written
    memory.append()
    newest.words[WRITTEN] = before
    assert _recover(memory, tmp_path).log_end == 50
