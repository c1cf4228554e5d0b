"""The topics a broker serves with their logs: what handlers look up on every request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import UUID

from penstock.cluster.topics import Topic
from penstock.log.partition import PartitionLog
from penstock.wire.errors import ErrorCode, KafkaError


class ServedTopic:
    __slots__ = ("logs", "replicas", "topic", "topic_id")

    def __init__(self, topic: Topic, logs: list[PartitionLog]) -> None:
        self.topic = topic
        self.topic_id = topic.topic_id.bytes
        self.logs = logs
        """Those of its partitions that have a replica on this broker."""
        self.replicas = {log.partition: log for log in logs}
        """The same by partition."""

    def log(self, index: int) -> PartitionLog:
        """The log of a partition that can be served, or the error a client gets for it."""
        log = self.replicas.get(index)
        if log is None or not log.leading:
            raise self._refusal(index, log)
        return log

    def _refusal(self, index: int, log: PartitionLog | None) -> KafkaError:
        name = f"{self.topic.name}-{index}"
        if not 0 <= index < len(self.topic.partitions):
            return KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no partition {name}")
        if log is not None and log.damage is not None:
            return KafkaError(ErrorCode.kafka_storage_error, log.damage)
        return KafkaError(ErrorCode.not_leader_or_follower, f"{name} is not led by this broker")


class Catalog:
    def __init__(self) -> None:
        self.by_name: dict[str, ServedTopic] = {}
        self.by_id: dict[bytes, ServedTopic] = {}

    def put(self, topic: Topic, logs: Iterable[PartitionLog]) -> None:
        served = ServedTopic(topic, list(logs))
        self.by_name[topic.name] = self.by_id[served.topic_id] = served

    def remove(self, name: str) -> None:
        served = self.by_name.pop(name, None)
        if served is not None:
            self.by_id.pop(served.topic_id, None)

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
        return served is not None and 0 <= partition < len(served.topic.partitions)

    def __iter__(self) -> Iterator[ServedTopic]:
        return iter(self.by_name.values())
