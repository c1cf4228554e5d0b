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
    records_out: int
    bytes_out: int
    log_bytes: int
    hot_bytes: int
    unflushed: int


def total(logs: Iterable[PartitionLog]) -> Totals:
    partitions = offline = records_in = bytes_in = records_out = bytes_out = log_bytes = hot_bytes = (
        unflushed
    ) = 0
    for log in logs:
        partitions += 1
        offline += log.damage is not None
        records_in += log.records_in
        bytes_in += log.bytes_in
        records_out += log.records_out
        bytes_out += log.bytes_out
        for segment in log.segments:
            log_bytes += segment.size
            if segment.memory is not None:
                hot_bytes += segment.memory.size
        unflushed += log.unflushed
    return Totals(
        partitions, offline, records_in, bytes_in, records_out, bytes_out, log_bytes, hot_bytes, unflushed
    )
