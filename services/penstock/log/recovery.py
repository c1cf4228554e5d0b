"""Bringing a partition back: from its shared memory after a crash, from disk after losing that.

After kill -9 the segments are still in tmpfs, the words in their headers say how far whole batches
were written, and only bytes below those words are looked at (rule S6: recycled memory is full of old
batches with good CRCs). After losing memory the disk is walked batch by batch; a torn tail is cut, and
offsets go on above the ceiling of what any reader may have seen (rule R9). Damage in the middle takes
this one partition offline with a text that says where it is and what to do.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from penstock.log.index import SparseIndex
from penstock.log.producers import ProducerTable
from penstock.log.segment import LOG_SUFFIX, Segment
from penstock.log.state import PartitionRecord
from penstock.shm import layout
from penstock.shm.control import LayoutMismatch, PartitionControl
from penstock.shm.memory import WRITTEN, SegmentMemory
from penstock.wire import batch

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Recovered:
    control: PartitionControl
    segments: list[Segment] = field(default_factory=list)
    log_start: int = 0
    log_end: int = 0
    committed: int = 0
    skip_to: int = 0
    """Where offsets go on if what was shown to readers may have been lost; else not above log_end."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Which epoch began where."""
    producers: ProducerTable = field(default_factory=ProducerTable)
    memory_lost: bool = False
    intact: bool = False
    """Everything that this log ever acknowledged is still here (rule R1)."""
    whole_to: int = 0
    """Up to here, from the old end on, no file is missing."""
    is_prefix: bool = False
    """If not intact: what is here is at least the beginning of what was."""
    damage: str | None = None


class _Damage(Exception):
    pass


def recover(memory_directory: Path, disk_directory: Path, record: PartitionRecord, now_ms: int) -> Recovered:
    """Everything that is left of a partition. Blocks: runs before the broker serves, or on a thread."""
    memory_directory.mkdir(parents=True, exist_ok=True)
    disk_directory.mkdir(parents=True, exist_ok=True)
    control = _open_control(memory_directory)
    if control is not None:
        record = replace(record, log_start=control.log_start)  # what is saved is never newer
    found = Recovered(control or PartitionControl.create(memory_directory, record.topic_id, record.partition))
    found.log_start = record.log_start
    found.epochs = list(record.epochs)
    turns: list[_Turn] = []
    try:
        hot = _hot_segments(memory_directory, disk_directory, record, control, now_ms) if control else None
        found.memory_lost = hot is None
        first_hot = hot[0].base_offset if hot else None
        if hot:
            _drop_leftovers(disk_directory, hot)
        verify = hot is None and record.clean_end < 0
        cold = _cold_segments(disk_directory, record, first_hot, now_ms, turns, verify=verify)
    except _Damage as damage:
        found.damage = str(damage)
        return found
    found.segments = cold + (hot or [])
    end = max(found.segments[-1].next_offset if found.segments else 0, record.log_start)
    if hot is None:
        # Readers may have seen offsets that are gone: they must never mean another record.
        found.skip_to = max(end, record.ceiling if record.clean_end < 0 else record.clean_end)
        found.committed = end
    else:
        assert control is not None
        if not hot:
            found.skip_to = control.appended  # if a file has less now, offsets go on behind it all the same
        found.committed = control.committed
    found.log_end = end
    looked_at = cold if verify else hot or []
    looked_from = looked_at[0].base_offset if looked_at else end + 1
    found.epochs = _true_epochs(record.epochs, turns if verify else _hot_turns(looked_at), looked_from)
    found.whole_to = _whole_to(found.segments, record.log_start, end)
    found.is_prefix = record.storage_id != 0 and found.whole_to == end
    found.intact = found.is_prefix and (
        end >= record.clean_end >= 0 if hot is None else end >= found.control.appended
    )
    found.producers = rebuild_producers(found.segments, now_ms)
    if hot is None and record.clean_end < 0:
        found.producers.forgive_gaps()
    return found


def _whole_to(segments: list[Segment], log_start: int, end: int) -> int:
    """Where the first hole begins: `log_start` if the oldest file is missing, or two tell of the same."""
    if segments and segments[0].base_offset > log_start:
        return log_start
    for one, following in pairwise(segments):
        if one.next_offset < following.base_offset:
            return one.next_offset
        if one.next_offset > following.base_offset:
            return log_start
    return end


class _Turn(NamedTuple):
    """A batch of another epoch than the one before it."""

    epoch: int
    base_offset: int
    behind: int
    """Where the batch before it ends."""


def _turns(located: Iterable[batch.Located], behind: int) -> Iterator[_Turn]:
    """The first batch and every one that begins an epoch."""
    epoch: int | None = None
    for _, header in located:
        if header.leader_epoch != epoch:
            epoch = header.leader_epoch
            yield _Turn(epoch, header.base_offset, behind)
        behind = header.next_offset


def _hot_turns(segments: list[Segment]) -> list[_Turn]:
    """Epochs only rise: a segment that begins in the same one as the next needs no more than a look."""
    found: list[_Turn] = []
    following: int | None = None
    for segment in reversed([segment for segment in segments if segment.size]):
        head = next(segment.walk(), None)
        if head is None:
            continue
        first = head.header.leader_epoch
        if first == following:
            found.append(_Turn(first, segment.base_offset, segment.base_offset))
        else:
            found += reversed(list(_turns(segment.walk(), segment.base_offset)))
        following = first
    return found[::-1]


def _true_epochs(
    saved: Iterable[tuple[int, int]], turns: list[_Turn], looked_from: int
) -> list[tuple[int, int]]:
    """The table as the records from `looked_from` on have it. Saved is what it was a moment before them,
    perhaps before a truncation, or after."""
    noted = dict(saved)
    epochs = [(epoch, start) for epoch, start in noted.items() if start < looked_from]
    for turn in turns:
        if not epochs or turn.epoch > epochs[-1][0]:
            # Compaction may have taken an epoch's first records, or all: what is noted in the gap is true.
            last = epochs[-1][0] if epochs else -1
            gone = [(epoch, start) for epoch, start in noted.items() if last < epoch < turn.epoch]
            epochs += [(epoch, start) for epoch, start in gone if turn.behind <= start <= turn.base_offset]
            start = noted.get(turn.epoch, -1)
            known = turn.behind <= start <= turn.base_offset
            epochs.append((turn.epoch, start if known else turn.base_offset))
    return epochs


def _open_control(directory: Path) -> PartitionControl | None:
    """None without one that was ever served from: a start that was cut short leaves an empty shell."""
    try:
        control = PartitionControl.open(directory, writable=True)
    except (OSError, LayoutMismatch, ValueError):
        return None
    return control if control.incarnation else None


def _hot_segments(
    memory_directory: Path,
    disk_directory: Path,
    record: PartitionRecord,
    control: PartitionControl,
    now_ms: int,
) -> list[Segment] | None:
    """The unbroken run of segments in memory that ends with the newest; None if that one is missing."""
    memories: dict[int, SegmentMemory] = {}
    for path in sorted(memory_directory.glob(f"*{layout.SEGMENT_SUFFIX}")):
        memory = _open_memory(path, record)
        if memory is None:
            path.unlink(missing_ok=True)
        else:
            memories[memory.base_offset] = memory
    if control.newest_base < 0:
        chain: list[SegmentMemory] = []
        _unlink(memories.values())
    elif not memories or max(memories) < control.newest_base:
        chain = []
        _unlink(memories.values())
        return None
    else:
        # A roll that was cut short leaves a newer, empty segment that newest_base doesn't know yet.
        bases = sorted(memories)
        chain = [memories[bases.pop()]]
        while bases and memories[bases[-1]].next_base in (chain[0].base_offset, -1):
            chain.insert(0, memories[bases.pop()])
            if chain[0].next_base == -1:
                chain[0].seal(chain[1].base_offset)
        _unlink(memories[base] for base in bases)
    while chain and chain[0].base_offset < record.cleaned_to and _is_on_disk(chain[0]):
        _unlink([chain.pop(0)])
    return [_adopt(memory, disk_directory, now_ms, newest=memory is chain[-1]) for memory in chain]


def _is_on_disk(memory: SegmentMemory) -> bool:
    """Only such a segment is ever cleaned; another one is of a log that went back and was not saved yet."""
    return memory.next_base != -1 and memory.flushed == memory.written


def _unlink(memories: Iterable[SegmentMemory]) -> None:
    for memory in memories:
        memory.unlink()


def _open_memory(path: Path, record: PartitionRecord) -> SegmentMemory | None:
    try:
        memory = SegmentMemory.open(path)
    except (OSError, ValueError):
        return None
    fits = (
        memory.generation % 2 == 0
        and memory.topic_id == record.topic_id
        and memory.partition == record.partition
        and path.name == layout.segment_name(memory.base_offset)
        and 0 <= memory.written <= memory.capacity
    )
    return memory if fits else None


def _adopt(memory: SegmentMemory, disk_directory: Path, now_ms: int, *, newest: bool) -> Segment:
    segment = Segment(_log_path(disk_directory, memory.base_offset), memory.base_offset, memory, now_ms)
    segment.size = memory.written
    segment.max_timestamp = memory.max_time
    if newest:
        # Its index and end are known only from its batches; the older ones are looked at when needed.
        segment.next_offset = memory.base_offset
        segment.index = SparseIndex()
        segment.max_timestamp = batch.NO_TIMESTAMP
        end, torn = 0, False
        view = segment.bytes_between(0, segment.size)
        for position, header in segment.walk():
            if position + header.size == segment.size and not batch.crc_matches(view[position:]):
                log.warning("cut a torn batch at offset %d of %s", header.base_offset, memory.path)
                torn = True
                break
            segment.index.add(header.base_offset, position, segment.max_timestamp)
            segment.max_timestamp = max(segment.max_timestamp, header.max_timestamp)
            segment.next_offset = header.next_offset
            end = position + header.size
        if end < segment.size and not torn:
            raise _Damage(
                f"{memory.path} is damaged at byte {end}, offset {segment.next_offset}: stop the broker and "
                "move the file away to go on from the copy on disk; then restart"
            )
        segment.size = end
        segment.room = memory.capacity - end
        memory.words[WRITTEN] = end
    else:
        segment.index = None
        segment.next_offset = memory.next_base
        segment.sealed = True
        segment.room = 0
    _match_file(segment, memory.flushed)
    return segment


def _match_file(segment: Segment, flushed: int) -> None:
    """A truncation goes on in a new segment, and its files go later: of the file that has this name only
    what was noted as `flushed` is known to be of this segment, and nothing behind its end may stay."""
    try:
        there = segment.path.stat().st_size
    except FileNotFoundError:
        there = 0
    segment.note_flushed(min(flushed, there, segment.size))
    if there > segment.size:
        os.truncate(segment.path, segment.size)
    if segment.flushed < segment.size:
        segment.index_path.unlink(missing_ok=True)
    if segment.flushed == 0:
        segment.producers_path.unlink(missing_ok=True)


def _drop_leftovers(directory: Path, hot: list[Segment]) -> None:
    """Files of segments that were cut off just before a crash."""
    names = {segment.path.stem for segment in hot}
    for path in directory.iterdir():
        if path.stem > hot[0].path.stem and path.stem not in names:
            path.unlink()


def _log_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}{LOG_SUFFIX}"


def _cold_segments(
    directory: Path,
    record: PartitionRecord,
    below: int | None,
    now_ms: int,
    turns: list[_Turn],
    *,
    verify: bool,
) -> list[Segment]:
    """Segments that are on disk only, oldest first; `turns` gets those of the ones that were walked."""
    segments: list[Segment] = []
    paths = sorted(directory.glob(f"*{LOG_SUFFIX}"))
    bases = [int(path.stem) for path in paths]
    for at, path in enumerate(paths):
        base = bases[at]
        if below is not None and base >= below:
            break
        following = min((b for b in (*bases[at + 1 : at + 2], below) if b is not None), default=None)
        if following is not None and following <= record.log_start:
            Segment(path, base, None, now_ms).delete_files()  # deleted logically before the crash
            continue
        segment = Segment(path, base, None, now_ms)
        segment.sealed = True
        segment.size = segment.flushed = path.stat().st_size
        segment.index = None
        newest = at == len(paths) - 1 and below is None
        loaded = segment.read_index_file()
        if loaded is not None and not verify:
            segment.index, summary = loaded
            segment.next_offset, segment.max_timestamp = summary.next_offset, summary.max_timestamp
        else:
            turns += _walk_file(segment, newest=newest)
        if below is not None and segment.next_offset > below:
            _cut_again(segment, below)
        if segment.size > 0:
            segments.append(segment)
        else:
            segment.delete_files()
    return segments


def _cut_again(segment: Segment, offset: int) -> None:
    """The log was cut and goes on in memory at `offset`; the crash came before the file was cut as well."""
    position = segment.position_on_disk(offset)
    base, _ = batch.read_place(segment.read_file(), position)
    if base >= offset:
        segment.cut(position, offset)
        segment.cut_file()


def _walk_file(segment: Segment, *, newest: bool) -> list[_Turn]:
    """Check every batch of a file; cut what is torn from the newest, report damage in any other."""
    content = segment.read_file()
    turns = list(_turns(_take_in(segment, content), segment.base_offset))
    end = segment.size
    if end == len(content):
        return turns
    if not newest:
        raise _Damage(
            f"{segment.path} is damaged at byte {end}, offset {segment.next_offset}: restore the file from "
            "a replica or a backup, or move it away to give up its records from there on; then restart"
        )
    log.warning(
        "cut %d torn bytes behind offset %d from %s", len(content) - end, segment.next_offset, segment.path
    )
    os.truncate(segment.path, end)
    segment.flushed = end
    return turns


def _take_in(segment: Segment, content: bytes) -> Iterator[batch.Located]:
    """The batches of a file up to the first that is torn; the segment has what it was told of so far."""
    segment.index = SparseIndex()
    segment.size = 0
    segment.next_offset = segment.base_offset
    for located in batch.walk(content, 0, len(content)):
        position, header = located
        whole = memoryview(content)[position : position + header.size]
        if header.base_offset < segment.next_offset or not batch.crc_matches(whole):
            return
        segment.index.add(header.base_offset, position, segment.max_timestamp)
        segment.max_timestamp = max(segment.max_timestamp, header.max_timestamp)
        segment.next_offset = header.next_offset
        segment.size = position + header.size
        yield located


def rebuild_producers(segments: list[Segment], now_ms: int, end: int | None = None) -> ProducerTable:
    """The newest snapshot, and every batch since, up to `end`, which is behind where each segment begins."""
    table = ProducerTable()
    start = 0
    for at in range(len(segments) - 1, 0, -1):
        if segments[at].memory is not None and segments[at].flushed == 0:
            continue  # the snapshot of that name may be of a segment that was cut, and not deleted yet
        try:
            snapshot = ProducerTable.decode(segments[at].read_producers_file())
        except OSError:
            snapshot = None
        if snapshot is not None:
            table, start = snapshot, at
            break
    for segment in segments[start:]:
        if segment.memory is not None:
            located = segment.walk()
        else:
            content = segment.read_file()
            located = batch.walk(content, 0, len(content))
        for _, header in located:
            if end is not None and header.base_offset >= end:
                break
            if header.producer_id != batch.NO_PRODUCER and not header.is_control:
                table.record(header, header.base_offset, now_ms)
    return table
