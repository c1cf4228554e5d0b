"""The topics a broker serves with their logs: what handlers look up on every request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from penstock.cluster.topics import Topic
from penstock.log.partition import PartitionLog
from penstock.wire.errors import ErrorCode, KafkaError


@dataclass(slots=True)
class ServedTopic:
    topic: Topic
    topic_id: bytes
    logs: list[PartitionLog] = field(default_factory=list)

    def log(self, index: int) -> PartitionLog:
        """The log of a partition that can be served, or the error a client gets for it."""
        if not 0 <= index < len(self.logs):
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, f"there is no partition {self.topic.name}-{index}"
            )
        log = self.logs[index]
        if log.damage is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, log.damage)
        return log


class Catalog:
    def __init__(self) -> None:
        self.by_name: dict[str, ServedTopic] = {}
        self.by_id: dict[bytes, ServedTopic] = {}

    def put(self, topic: Topic, logs: Iterable[PartitionLog]) -> None:
        served = ServedTopic(topic, topic.topic_id.bytes, list(logs))
        self.by_name[topic.name] = self.by_id[served.topic_id] = served

    def remove(self, name: str) -> None:
        served = self.by_name.pop(name)
        del self.by_id[served.topic_id]

    def find(self, name: str, index: int) -> PartitionLog:
        served = self.by_name.get(name)
        if served is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        return served.log(index)

    # What the group coordinator asks

    def topic_name(self, topic_id: UUID) -> str | None:
        served = self.by_id.get(topic_id.bytes)
        return served.topic.name if served else None

    def topic_id(self, name: str) -> UUID | None:
        served = self.by_name.get(name)
        return served.topic.topic_id if served else None

    def has_partition(self, name: str, partition: int) -> bool:
        served = self.by_name.get(name)
        return served is not None and 0 <= partition < len(served.logs)

    def __iter__(self) -> Iterator[ServedTopic]:
        return iter(self.by_name.values())
