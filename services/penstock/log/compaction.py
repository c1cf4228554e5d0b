"""Compaction: keep the last value of each key.

Runs on sealed segments below the high watermark only (rule R7), reads and writes the files on disk, one
new file per old one, renamed over it; shared memory is never rewritten, the compacted segment is simply
cold afterwards. Each producer's last batch keeps its header, so that its sequence survives (rule R5).
How far cleaning got is saved first: after a crash the memory of cleaned segments is not taken again.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from penstock.log.index import SparseIndex
from penstock.log.partition import PartitionLog
from penstock.log.segment import Segment
from penstock.log.spares import SpareFiles
from penstock.log.writebehind import WriteBehind
from penstock.wire import batch
from penstock.wire.records import Compression, Record, decode_records, encode_batch


class _Cleaned(NamedTuple):
    old: Segment
    new: Segment


def _cleanable(partition: PartitionLog, now_ms: int) -> list[Segment]:
    horizon = now_ms - partition.config.min_compaction_lag_ms
    segments = []
    for segment in partition.segments[:-1]:
        if (
            not segment.sealed
            or segment.next_offset > partition.high_watermark
            or segment.flushed < segment.size
            or (partition.config.min_compaction_lag_ms and segment.max_timestamp > horizon)
        ):
            break
        segments.append(segment)
    return segments


def wants_compaction(partition: PartitionLog, now_ms: int) -> bool:
    """Whether enough of the cleanable part has never been cleaned."""
    if not partition.config.compact:
        return False
    segments = _cleanable(partition, now_ms)
    total = sum(segment.size for segment in segments)
    dirty = sum(segment.size for segment in segments if segment.base_offset >= partition.cleaned_to)
    return dirty > 0 and dirty >= partition.config.min_cleanable_dirty_ratio * total


async def compact(partition: PartitionLog, write_behind: WriteBehind, now_ms: int) -> None:
    segments = _cleanable(partition, now_ms)
    if not segments:
        return
    cleaned_to = segments[-1].next_offset
    tombstone_horizon = now_ms - partition.config.delete_retention_ms
    last_of_producer = {
        producer_id: producer.batches[-1].base_offset
        for producer_id, producer in partition.producers
        if producer.batches
    }
    partition.cleaned_to = cleaned_to
    write_behind.save_state(partition)
    await write_behind.durable()
    # A log that began anew meanwhile may have given their paths to its own segments.
    segments = [segment for segment in segments if segment in partition.segments]
    if not segments or partition.deleted:
        return
    results: list[_Cleaned] = []

    def work() -> None:
        latest: dict[bytes, int] = {}
        for segment in segments:
            for _, record in _records_of(segment):
                if record.key is not None:
                    latest[record.key] = record.offset
        for segment in segments:
            results.append(
                _Cleaned(
                    segment,
                    _rewrite(segment, latest, tombstone_horizon, last_of_producer, write_behind.spares),
                )
            )

    try:
        await write_behind.on_thread(work)
    finally:  # what was renamed before an error is the log's file from now on
        for old, new in results:
            if old in partition.segments:
                partition.replace(old, new)


def _records_of(segment: Segment) -> list[tuple[batch.BatchHeader, Record]]:
    content = segment.read_file()
    found: list[tuple[batch.BatchHeader, Record]] = []
    for position, header in batch.walk(content, 0, len(content)):
        whole = memoryview(content)[position : position + header.size]
        if not header.is_control and header.record_count:
            found.extend((header, record) for record in decode_records(whole))
    return found


def _rewrite(
    segment: Segment,
    latest: dict[bytes, int],
    tombstone_horizon: int,
    last_of_producer: dict[int, int],
    spares: SpareFiles,
) -> Segment:
    """Write the segment without what is superseded, rename it over the old file."""
    content = segment.read_file()
    kept: list[bytes] = []
    for position, header in batch.walk(content, 0, len(content)):
        whole = memoryview(content)[position : position + header.size]
        if header.is_control:
            kept.append(bytes(whole))
            continue
        records = list(decode_records(whole)) if header.record_count else []
        survivors = [
            record
            for record in records
            if record.key is not None
            and latest.get(record.key) == record.offset
            and (record.value is not None or record.timestamp >= tombstone_horizon)
        ]
        if records and len(survivors) == len(records):
            kept.append(bytes(whole))
        elif (
            survivors
            or last_of_producer.get(header.producer_id) == header.base_offset
            # A reader must come to the segment's end even if its last records are gone.
            or header.next_offset == segment.next_offset
        ):
            kept.append(
                encode_batch(
                    survivors,
                    base_offset=header.base_offset,
                    last_offset_delta=header.last_offset_delta,
                    compression=Compression(header.compression),
                    log_append_time=bool(header.attributes & batch.LOG_APPEND_TIME),
                    producer_id=header.producer_id,
                    producer_epoch=header.producer_epoch,
                    base_sequence=header.base_sequence,
                    leader_epoch=header.leader_epoch,
                    transactional=header.is_transactional,
                )
            )
    body = b"".join(kept)
    temporary = segment.path.with_suffix(".cleaned")
    with temporary.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    cleaned = Segment(segment.path, segment.base_offset, None, segment.created_ms)
    cleaned.next_offset = segment.next_offset
    cleaned.size = cleaned.flushed = cleaned.committed = len(body)
    cleaned.max_timestamp = segment.max_timestamp
    cleaned.sealed = True
    cleaned.index = SparseIndex.build(body, 0, len(body))
    cleaned.is_read = True  # through the segment it replaces: its path is the same
    cleaned.finish_file(spares)
    segment.close_file()
    temporary.rename(segment.path)  # last: nothing can fail once the file is the new one
    return cleaned
