"""Topics filled by a real Kafka client, and the two sources over them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec


class Topic:
    def __init__(
        self,
        servers: str,
        name: str,
        partitions: int,
        config: dict[str, str] | None = None,
        replication: int = 1,
    ) -> None:
        self.servers, self.name, self.partitions = servers, name, partitions
        self._replication = replication
        # A client that has gone takes its futures with it.
        self._admin = AdminClient({"bootstrap.servers": servers})
        self._settings = {key.replace("_", "."): value for key, value in (config or {}).items()}
        self._create()

    def _create(self) -> None:
        wanted = NewTopic(self.name, self.partitions, self._replication, config=self._settings)
        self._admin.create_topics([wanted])[self.name].result(30)

    def add_partitions(self, total: int) -> None:
        self._admin.create_partitions([NewPartitions(self.name, total)])[self.name].result(30)
        self.partitions = total

    def delete_records(self, partition: int, before: int) -> None:
        place = TopicPartition(self.name, partition, before)
        self._admin.delete_records([place])[place].result(30)

    def delete(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(30)

    def make_again(self) -> None:
        self.delete()
        self._create()

    def fill(
        self,
        count: int,
        *,
        first: int = 0,
        timestamp: int | None = None,
        headers: bool = False,
        **config: Any,
    ) -> list[int]:
        """Writes the numbers first, first + 1, ... as values, dealt out to the partitions in turn."""
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 20, "acks": "all", **config})
        failed: list[str] = []
        for i in range(first, first + count):
            while True:
                try:
                    producer.produce(
                        self.name,
                        value=None if i % 97 == 13 else f"value {i} of the topic {self.name}",
                        key=None if i % 5 == 3 else f"key-{i % 11}",
                        partition=i % self.partitions,
                        timestamp=timestamp + i if timestamp is not None else 0,
                        headers=_headers(i) if headers else None,
                        on_delivery=lambda error, _message: failed.append(str(error)) if error else None,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        assert not failed, failed[0]
        return list(range(first, first + count))

    def ends(self) -> dict[int, int]:
        """The offset behind each partition's last record."""
        asked = {TopicPartition(self.name, each): OffsetSpec.latest() for each in range(self.partitions)}
        found = self._admin.list_offsets(asked)
        return {place.partition: future.result(30).offset for place, future in found.items()}

    def options(self, **more: Any) -> dict[str, str]:
        """Source options; None takes one away, a dict becomes JSON."""
        base = {"kafka.bootstrap.servers": self.servers, "subscribe": self.name, **more}
        return {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in base.items()
            if value is not None
        }


def _headers(i: int) -> list[tuple[str, bytes | None]] | None:
    if i % 3 == 0:
        return None
    return [("number", str(i).encode()), ("empty", b""), ("none", None)][: i % 3 + 1]


def now_ms() -> int:
    return round(time.time() * 1000)


def plain(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows as comparable values, in the order of the log."""

    def value(cell: Any) -> Any:
        if isinstance(cell, bytearray):
            return bytes(cell)
        if isinstance(cell, list):
            return [tuple(value(part) for part in item) for item in cell]
        return cell

    out = [tuple(value(cell) for cell in row) for row in rows]
    return sorted(out, key=lambda row: tuple(repr(cell) for cell in row))
