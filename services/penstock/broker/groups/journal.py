"""Writing to `__consumer_offsets`: what is applied to memory is what the log has, in the log's order.

A write is started by `Journal.write`, which doesn't wait; its effect runs once the record is committed,
or refused, and after the effects of all earlier writes to that partition. Writes overlap, effects don't.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from penstock.broker.groups.model import Timers
from penstock.broker.groups.schema import GroupKey, OffsetKey, encode_key
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.records import Record, encode_batch

log = logging.getLogger(__name__)

Entry = tuple[OffsetKey | GroupKey, bytes | None]
"""Key and encoded value; None deletes the key."""


class OffsetsLog(Protocol):
    """The partitions of `__consumer_offsets`, as the broker gives them to the coordinator."""

    def partition_for(self, group: str) -> int: ...

    async def append(self, partition: int, batch: bytes) -> None:
        """Return when the batch is committed, raise KafkaError if it can't be.

        Batches must enter the log in the order of the calls: no waiting before the log has the bytes.
        """

    def read(self, partition: int) -> AsyncIterator[bytes]:
        """Every record batch, oldest first, up to the end of the log at the time of the call."""


def partition_for(group: str, partitions: int) -> int:
    """Kafka's choice: Java's String.hashCode, made positive, modulo."""
    code = 0
    encoded = group.encode("utf-16-be", "surrogatepass")
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    if code == 0x80000000:  # Java's abs() can't turn this one positive; Kafka takes 0
        return 0
    return (code if code < 0x80000000 else 0x100000000 - code) % partitions


class Journal:
    def __init__(self, offsets_log: OffsetsLog, timers: Timers) -> None:
        self._log = offsets_log
        self._timers = timers
        self._newest: dict[int, asyncio.Task[ErrorCode]] = {}

    def write(
        self, group_id: str, entries: Sequence[Entry], effect: Callable[[ErrorCode], None]
    ) -> asyncio.Future[ErrorCode]:
        """Append the entries as one batch; `effect` is given the outcome, and so is who awaits.

        The effect happens even if nobody waits for it any more (the client hung up).
        """
        partition = self._log.partition_for(group_id)
        now = self._timers.now_ms()
        batch = encode_batch(
            [Record(i, now, encode_key(key), value) for i, (key, value) in enumerate(entries)]
        )
        before = self._newest.get(partition)
        task = asyncio.get_running_loop().create_task(self._write(partition, batch, before, effect))
        self._newest[partition] = task
        task.add_done_callback(lambda done: self._forget(partition, done))
        return asyncio.shield(task)

    async def _write(
        self,
        partition: int,
        batch: bytes,
        before: asyncio.Task[ErrorCode] | None,
        effect: Callable[[ErrorCode], None],
    ) -> ErrorCode:
        code = ErrorCode.none
        try:
            await self._log.append(partition, batch)
        except KafkaError as error:
            code = _as_coordinator_error(error.code)
            log.warning("group offsets: append to partition %d refused: %s", partition, error)
        except Exception:
            code = ErrorCode.coordinator_not_available
            log.exception("group offsets: append to partition %d failed", partition)
        if before is not None:
            await asyncio.wait((before,))
        effect(code)
        return code

    def _forget(self, partition: int, done: asyncio.Task[ErrorCode]) -> None:
        if self._newest.get(partition) is done:
            del self._newest[partition]


def _as_coordinator_error(code: ErrorCode) -> ErrorCode:
    """What a group's client understands instead: look for the coordinator again, or try again."""
    match code:
        case (
            ErrorCode.not_leader_or_follower
            | ErrorCode.fenced_leader_epoch
            | ErrorCode.kafka_storage_error
            | ErrorCode.not_coordinator
        ):
            return ErrorCode.not_coordinator
        case ErrorCode.message_too_large | ErrorCode.record_list_too_large:
            return ErrorCode.invalid_commit_offset_size
        case _:
            return ErrorCode.coordinator_not_available
