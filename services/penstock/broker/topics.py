"""Making, growing and deleting topics: metadata first, then the logs, then what clients see."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from penstock.broker.context import BrokerContext
from penstock.cluster.topics import OFFSETS_TOPIC, Topic
from penstock.log.store import PartitionPlace
from penstock.wire.errors import ErrorCode, KafkaError

AT_ONCE: Final = 100
"""Partitions made in one go, some tens of milliseconds; then other clients get their turn."""
OFFSETS_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1024 * 1024),
    "max.message.bytes": str(64 * 1024 * 1024),  # a group with thousands of offsets goes in one batch
}


class TopicKeeper:
    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._lock = asyncio.Lock()

    async def open_all(self) -> None:
        """At start: bring back every topic there is."""
        context = self._context
        topics = list(context.registry.by_name.values())
        logs = await context.store.open_patiently([place for topic in topics for place in _places(topic)])
        await context.registry.note_epochs(
            {(log.topic_id, log.partition): log.leader_epoch for log in logs if log.damage is None}
        )
        for name in [topic.name for topic in topics]:
            self._serve(context.registry.get(name))

    async def create(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str],
        replication: int = 1,
        assignments: Mapping[int, list[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> Topic:
        async with self._lock:
            topic = await self._context.registry.create(
                name, partitions, configs, replication, assignments, validate_only=validate_only
            )
            if validate_only:
                return topic
            return await self._open(topic, 0)

    async def ensure(self, name: str) -> Topic:
        """The topic, made with the defaults if nobody has yet."""
        existing = self._context.registry.by_name.get(name)
        if existing is not None and name in self._context.catalog.by_name:
            return existing
        defaults = self._context.defaults
        async with self._lock:
            existing = self._context.registry.by_name.get(name)
            if existing is not None:
                return existing
            internal = name == OFFSETS_TOPIC
            topic = await self._context.registry.create(
                name,
                defaults.offsets_partitions if internal else defaults.partitions,
                OFFSETS_CONFIG if internal else {},
            )
            return await self._open(topic, 0)

    async def add_partitions(
        self, name: str, count: int, assignments: list[list[int]], *, validate_only: bool
    ) -> None:
        """`assignments`: the brokers of each new partition; empty: anywhere."""
        own = self._context.broker_id
        async with self._lock:
            before = len(self._context.registry.get(name).partitions)
            if assignments and count > before and assignments != [[own]] * (count - before):
                raise KafkaError(
                    ErrorCode.invalid_replica_assignment,
                    f"{count - before} new partitions, and the only broker here is {own}, not {assignments}",
                )
            topic = await self._context.registry.add_partitions(name, count, validate_only=validate_only)
            if not validate_only:
                await self._open(topic, before)

    async def configure(self, name: str, configs: Mapping[str, str], *, validate_only: bool) -> None:
        async with self._lock:
            topic = await self._context.registry.configure(name, configs, validate_only=validate_only)
            if not validate_only:
                self._context.store.configure(topic.topic_id.bytes, topic.log_config)
                self._serve(topic)

    async def delete(self, name: str) -> Topic:
        async with self._lock:
            topic = await self._context.registry.delete(name)
            self._context.catalog.remove(name)
            await self._context.store.delete(name, topic.topic_id.bytes)
        for listener in self._context.on_topic_deleted:
            listener(name)
        return topic

    async def _open(self, topic: Topic, first: int) -> Topic:
        places = _places(topic)[first:]
        epochs = {}
        for start in range(0, len(places), AT_ONCE):
            for log in self._context.store.open(places[start : start + AT_ONCE], new=True):
                epochs[(log.topic_id, log.partition)] = log.leader_epoch
            await asyncio.sleep(0)
        await self._context.registry.note_epochs(epochs)
        topic = self._context.registry.get(topic.name)
        self._serve(topic)
        return topic

    def _serve(self, topic: Topic) -> None:
        logs = self._context.store.logs
        key = topic.topic_id.bytes
        self._context.catalog.put(topic, [logs[(key, index)] for index in range(len(topic.partitions))])


def _places(topic: Topic) -> list[PartitionPlace]:
    return [
        PartitionPlace(topic.name, topic.topic_id.bytes, index, topic.log_config, info.leader_epoch)
        for index, info in enumerate(topic.partitions)
    ]
