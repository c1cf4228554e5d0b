"""Sums over many logs, in one pass: with 1,000 partitions a pass for each sum would be felt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.log.partition import PartitionLog


class Totals(NamedTuple):
    partitions: int
    offline: int
    records_in: int
    bytes_in: int
    bytes_replicated: int
    records_out: int
    bytes_out: int
    segments: int
    hot_segments: int
    log_bytes: int
    hot_bytes: int
    held_bytes: int
    """Of hot_bytes, what can't be taken back now: being written, or not on disk yet."""
    unflushed: int


def total(logs: Iterable[PartitionLog]) -> Totals:
    partitions = offline = records_in = bytes_in = bytes_replicated = records_out = bytes_out = 0
    segments = hot_segments = log_bytes = hot_bytes = held_bytes = unflushed = 0
    for log in logs:
        partitions += 1
        offline += log.damage is not None
        records_in += log.records_in
        bytes_in += log.bytes_in
        bytes_replicated += log.bytes_replicated
        records_out += log.records_out
        bytes_out += log.bytes_out
        segments += len(log.segments)
        for segment in log.segments:
            log_bytes += segment.size
            memory = segment.memory
            if memory is not None:
                hot_segments += 1
                hot_bytes += memory.size
                if not segment.sealed or segment.flushed != segment.size:
                    held_bytes += memory.size
        unflushed += log.unflushed
    return Totals(
        partitions,
        offline,
        records_in,
        bytes_in,
        bytes_replicated,
        records_out,
        bytes_out,
        segments,
        hot_segments,
        log_bytes,
        hot_bytes,
        held_bytes,
        unflushed,
    )
