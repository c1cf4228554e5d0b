"""Which groups are ours: those whose partition of `__consumer_offsets` this broker leads and has read.

A partition is loaded before any of its groups is served, so that a new coordinator knows all that the
last one acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.broker.groups.group import Group, restore
from penstock.broker.groups.journal import OffsetsLog
from penstock.broker.groups.model import CommittedOffset, State, TopicPartition
from penstock.broker.groups.schema import (
    GroupKey,
    StoredGroup,
    decode_group,
    decode_key,
    decode_offset,
)
from penstock.wire.batch import read_header
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.records import decode_records

log = logging.getLogger(__name__)

MAX_ID_LENGTH = 8_000
"""In characters: ids and names are stored as UTF-8 with a 16-bit length."""


@dataclass(slots=True)
class _Owned:
    loading: bool = True
    groups: dict[str, Group] = field(default_factory=dict)


class Registry:
    def __init__(self, offsets_log: OffsetsLog) -> None:
        self._log = offsets_log
        self._owned: dict[int, _Owned] = {}

    def find(self, group_id: str) -> Group | None:
        """The group if it exists; KafkaError if it isn't ours, or not yet, or is being deleted."""
        group = self._served(group_id).groups.get(group_id)
        if group is not None and group.state is State.DEAD:
            raise KafkaError(ErrorCode.coordinator_not_available)
        return group

    def find_or_create(self, group_id: str) -> Group:
        group = self.find(group_id)
        if group is None:
            group = self._served(group_id).groups[group_id] = Group(group_id)
        return group

    def drop(self, group: Group) -> None:
        owned = self._owned.get(self._log.partition_for(group.group_id))
        if owned is not None and owned.groups.get(group.group_id) is group:
            del owned.groups[group.group_id]

    def __iter__(self) -> Iterator[Group]:
        """Every group that is served; safe against changes on the way."""
        for owned in list(self._owned.values()):
            if not owned.loading:
                yield from list(owned.groups.values())

    @property
    def is_loading(self) -> bool:
        return any(owned.loading for owned in self._owned.values())

    async def load(self, partition: int) -> list[Group]:
        """Read the partition to its end and serve its groups, which are returned.

        Nothing to do for one that we have. If reading fails, the partition is not ours.
        """
        if partition in self._owned:
            return []
        owned = self._owned[partition] = _Owned()
        try:
            groups = await self._read(partition, owned)
        except BaseException:
            self._release(partition, owned)
            raise
        if self._owned.get(partition) is not owned:
            return []  # it went to another broker while we read
        owned.groups = groups
        owned.loading = False
        if groups:
            log.info("group offsets: partition %d loaded, %d groups", partition, len(groups))
        return list(groups.values())

    def unload(self, partition: int) -> list[Group]:
        """Stop serving the partition; its groups are returned, so that who waits in them can be told."""
        owned = self._owned.pop(partition, None)
        return [] if owned is None else list(owned.groups.values())

    def _served(self, group_id: str) -> _Owned:
        if len(group_id) > MAX_ID_LENGTH:
            raise KafkaError(ErrorCode.invalid_group_id)
        owned = self._owned.get(self._log.partition_for(group_id))
        if owned is None:
            raise KafkaError(ErrorCode.not_coordinator)
        if owned.loading:
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        return owned

    def _release(self, partition: int, owned: _Owned) -> None:
        if self._owned.get(partition) is owned:
            del self._owned[partition]

    async def _read(self, partition: int, owned: _Owned) -> dict[str, Group]:
        stored: dict[str, StoredGroup] = {}
        offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        async for batch in self._log.read(partition):
            if self._owned.get(partition) is not owned:
                break  # it went to another broker meanwhile
            if read_header(batch).is_control:
                continue
            for record in decode_records(batch):
                key = decode_key(record.key or b"")
                if key is None:
                    log.warning("group offsets: partition %d has a key of unknown version", partition)
                elif isinstance(key, GroupKey):
                    if record.value is None:
                        stored.pop(key.group_id, None)
                    else:
                        stored[key.group_id] = decode_group(record.value)
                elif record.value is None:
                    offsets.get(key.group_id, {}).pop(key.topic_partition, None)
                else:
                    of_group = offsets.setdefault(key.group_id, {})
                    of_group[key.topic_partition] = decode_offset(record.value)
            await asyncio.sleep(0)  # a log in memory never waits by itself; others want the loop too
        return {
            group_id: restore(group_id, stored.get(group_id), offsets.get(group_id, {}))
            for group_id in stored.keys() | offsets.keys()
            if group_id in stored or offsets[group_id]
        }
