"""Offsets for those who look for a place: ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from penstock.broker.context import BrokerContext
from penstock.broker.fetch import check_epoch
from penstock.log import seek
from penstock.log.partition import PartitionLog
from penstock.log.segment import Segment
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import Tree

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5


class OffsetHandlers:
    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    async def list_offsets(self, request: Any, version: int) -> Tree:
        topics = []
        for wanted in request.topics:
            partitions = []
            for partition in wanted.partitions:
                index = partition.partition_index
                try:
                    log = self._context.catalog.find(str(wanted.name), index)
                    check_epoch(log, getattr(partition, "current_leader_epoch", -1))
                    found = await self._find(log, partition.timestamp)
                    partitions.append(
                        {
                            "partition_index": index,
                            "error_code": ErrorCode.none,
                            "timestamp": found.timestamp,
                            "offset": found.offset,
                            "leader_epoch": log.leader_epoch if found.offset >= 0 else -1,
                        }
                    )
                except KafkaError as error:
                    partitions.append({"partition_index": index, "error_code": error.code})
            topics.append({"name": wanted.name, "partitions": partitions})
        return {"topics": topics}

    async def _find(self, log: PartitionLog, timestamp: int) -> seek.Found:
        if log.high_watermark < log.epoch_start and timestamp not in (EARLIEST, EARLIEST_LOCAL):
            # A new leader doesn't know yet how far its predecessor had committed (rule R8).
            raise KafkaError(ErrorCode.offset_not_available, f"{log} was elected a moment ago")
        if timestamp == LATEST:
            return seek.Found(log.high_watermark, -1)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return seek.Found(log.log_start, -1)
        if timestamp == MAX_TIMESTAMP:
            timestamp = seek.newest_time(log)
            if timestamp < 0:
                return seek.Found(-1, -1)
        if timestamp == LATEST_TIERED:
            return seek.Found(-1, -1)
        if timestamp < 0:
            raise KafkaError(ErrorCode.unsupported_version, f"unknown special timestamp {timestamp}")
        return await self._by_time(log, timestamp)

    async def _by_time(self, log: PartitionLog, timestamp: int) -> seek.Found:
        term = log.term
        loop = asyncio.get_running_loop()
        left = seek.candidates(log, timestamp)
        while left:
            segment = left.pop(0)
            if segment.memory is not None:
                memory = segment.memory
                memory.holds += 1
                try:
                    found = seek.first_at(segment, seek.content(segment), timestamp, log.log_start)
                finally:
                    memory.holds -= 1
            else:
                failure: OSError | None = None
                found = None
                try:
                    found = await loop.run_in_executor(None, _on_disk, segment, timestamp, log.log_start)
                except OSError as error:
                    failure = error
                if not log.leading or log.term != term:  # whatever was read: the log may be another by now
                    raise KafkaError(ErrorCode.not_leader_or_follower, f"{log} changed hands meanwhile")
                if failure is not None:
                    if segment in log.segments:
                        raise KafkaError(ErrorCode.kafka_storage_error, f"{log}: {failure}")
                    left = seek.candidates(log, timestamp)  # retention was faster: what is there now?
            if found is not None:
                return found
        return seek.Found(-1, -1)

    def offset_for_leader_epoch(self, request: Any, version: int) -> Tree:
        topics = []
        for wanted in request.topics:
            partitions = []
            for partition in wanted.partitions:
                try:
                    log = self._context.catalog.find(str(wanted.topic), partition.partition)
                    check_epoch(log, partition.current_leader_epoch)
                    end = log.end_offset_for_epoch(partition.leader_epoch)
                    partitions.append(
                        {
                            "partition": partition.partition,
                            "error_code": ErrorCode.none,
                            "leader_epoch": end.epoch,
                            "end_offset": end.start_offset,
                        }
                    )
                except KafkaError as error:
                    partitions.append({"partition": partition.partition, "error_code": error.code})
            topics.append({"topic": wanted.topic, "partitions": partitions})
        return {"topics": topics}


def _on_disk(segment: Segment, timestamp: int, log_start: int) -> seek.Found | None:
    return seek.first_at(segment, seek.content(segment), timestamp, log_start)
