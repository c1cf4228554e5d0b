"""The group coordinator's log: the partitions of `__consumer_offsets`."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Final

from penstock.broker.context import BrokerContext
from penstock.broker.groups.journal import partition_for
from penstock.broker.produce import committed
from penstock.cluster.topics import OFFSETS_TOPIC
from penstock.log.partition import CeilingReached, PartitionLog
from penstock.log.pool import MemoryExhausted
from penstock.wire import batch
from penstock.wire.errors import ErrorCode, KafkaError

_TIMEOUT: Final = 5.0
_READ: Final = 1 << 20


class ConsumerOffsets:
    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def partitions(self) -> int:
        served = self._context.catalog.by_name.get(OFFSETS_TOPIC)
        return len(served.topic.partitions) if served else self._context.defaults.offsets_partitions

    def partition_for(self, group: str) -> int:
        return partition_for(group, self.partitions)

    async def append(self, partition: int, encoded: bytes) -> None:
        log = self._context.catalog.find(OFFSETS_TOPIC, partition)
        deadline = asyncio.get_running_loop().time() + _TIMEOUT
        header = batch.check_produced(memoryview(encoded), log.config.max_message_bytes)
        term = log.term
        if log.short_of_replicas:
            raise KafkaError(ErrorCode.not_enough_replicas, f"{log} has too few replicas in sync")
        async with self._turns[partition]:  # a commit that waits must not be overtaken by the next one
            self._check_leading(log, term)
            try:
                result = log.append(header, encoded)
            except MemoryExhausted as full:
                raise KafkaError(ErrorCode.coordinator_not_available, str(full)) from None
            except CeilingReached:
                await self._context.store.raise_ceilings([log])
                self._check_leading(log, term)
                result = log.append(header, encoded)
        code = await committed(log, result.next_offset, term, deadline)
        if code is not ErrorCode.none:
            raise KafkaError(code, "the offset commit was not committed")

    @staticmethod
    def _check_leading(log: PartitionLog, term: int) -> None:
        """After every wait: a deposed coordinator writes nothing (rule R12)."""
        if log.term != term or not log.leading:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"{log} is led by another broker now")

    async def read(self, partition: int) -> AsyncIterator[bytes]:
        log = self._context.catalog.find(OFFSETS_TOPIC, partition)
        loop = asyncio.get_running_loop()
        offset = log.log_start
        while True:
            part = log.read(offset, _READ)
            if part is None:
                return
            if part.view is None:
                segment = part.segment
                chunk = await loop.run_in_executor(
                    None, segment.read_cold, part.offset, _READ, segment.committed
                )
            else:
                chunk = bytes(part.view)
            if not chunk:
                return
            for position, header in batch.walk(chunk, 0, len(chunk)):
                offset = header.next_offset
                if header.record_count:
                    yield chunk[position : position + header.size]
            await asyncio.sleep(0)
