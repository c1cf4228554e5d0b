"""Topics and their partitions as the cluster knows them, cached from the metadata store.

    /topics/<name>       id, configs, how many replicas are wanted, and per partition: replicas, in-sync set,
                         leader, leader epoch
    /producer-ids        the next block of producer ids that nobody has
    /cluster             the cluster's id

Read on the event loop from the cache, changed by compare-and-swap. Raises KafkaError for what a client
may not ask.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.cluster.metadata import Change, MetadataStore, Versioned
from penstock.log.config import TOPIC_CONFIGS, LogConfig, still_taken
from penstock.wire.errors import ErrorCode, KafkaError

CLUSTER_KEY: Final = "/cluster"
OFFSETS_TOPIC: Final = "__consumer_offsets"
INTERNAL: Final = frozenset({OFFSETS_TOPIC})
MAX_PARTITIONS: Final = 10_000
PRODUCER_ID_BLOCK: Final = 1000
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    topic_id: uuid.UUID
    configs: Mapping[str, str]
    partitions: tuple[PartitionInfo, ...]
    revision: int
    log_config: LogConfig
    replication: int = 1
    """How many replicas its partitions shall have; while brokers are drained or gone, some may have fewer."""

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL


def check_topic_name(name: str) -> None:
    if not _LEGAL.fullmatch(name) or name in (".", ".."):
        raise KafkaError(
            ErrorCode.invalid_topic_exception,
            f"topic name {name!r}: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', but not '.' or '..'",
        )


class TopicRegistry:
    def __init__(self, store: MetadataStore, broker_id: int, defaults: Mapping[str, str]) -> None:
        self._store = store
        self._broker_id = broker_id
        self.defaults = defaults
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[bytes, Topic] = {}
        self.cluster_id = ""
        self._producer_ids: Iterable[int] = iter(())

    async def load(self) -> None:
        for entry in await self._store.scan("/topics/"):
            self._keep(self._decode(entry))
        await self._load_cluster_id()

    async def _load_cluster_id(self) -> None:
        found = await self._store.get(CLUSTER_KEY)
        if found is None:
            await self._store.swap([Change(CLUSTER_KEY, {"id": str(uuid.uuid4())}, 0)])
            found = await self._store.get(CLUSTER_KEY)
            assert found is not None
        self.cluster_id = found.value["id"]

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
        if assignments:
            if sorted(assignments) != list(range(len(assignments))):
                raise KafkaError(
                    ErrorCode.invalid_replica_assignment, "partitions must be numbered from 0 on"
                )
            if any(replicas != [self._broker_id] for replicas in assignments.values()):
                raise KafkaError(
                    ErrorCode.invalid_replica_assignment, f"the only broker here is {self._broker_id}"
                )
            partitions = len(assignments)
        elif replication != 1:
            raise KafkaError(
                ErrorCode.invalid_replication_factor,
                f"replication factor {replication}: there is one broker here, so it can only be 1",
            )
        topic = self._new_topic(name, configs, [self._new_partition()] * max(0, min(partitions, 1 << 20)))
        if validate_only:
            return topic
        return await self._save(topic)

    def _new_topic(self, name: str, configs: Mapping[str, str], partitions: list[PartitionInfo]) -> Topic:
        check_topic_name(name)
        if name in self.by_name:
            raise KafkaError(ErrorCode.topic_already_exists, f"topic {name} already exists")
        if not 1 <= len(partitions) <= MAX_PARTITIONS:
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"a topic has 1 to {MAX_PARTITIONS} partitions, not {len(partitions)}",
            )
        parsed = LogConfig.parse(configs, self.defaults)
        replication = max(len(info.replicas) for info in partitions)
        return Topic(name, uuid.uuid4(), dict(configs), tuple(partitions), 0, parsed, replication)

    async def add_partitions(self, name: str, count: int, *, validate_only: bool = False) -> Topic:
        topic = self.get(name)
        self._check_growth(topic, count)
        added = tuple([self._new_partition()] * (count - len(topic.partitions)))
        grown = replace(topic, partitions=topic.partitions + added)
        return grown if validate_only else await self._save(grown)

    def _check_growth(self, topic: Topic, count: int) -> None:
        if topic.is_internal:  # a group's partition goes by the count: its offsets would not be found again
            raise KafkaError(ErrorCode.invalid_request, f"{topic.name} is internal: its partitions stay")
        if count <= len(topic.partitions):
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"topic {topic.name} has {len(topic.partitions)} partitions; it can only get more",
            )
        if count > MAX_PARTITIONS:
            raise KafkaError(ErrorCode.invalid_partitions, f"at most {MAX_PARTITIONS} partitions")

    async def configure(self, name: str, configs: Mapping[str, str], *, validate_only: bool = False) -> Topic:
        changed = self._configured(self.get(name), configs)
        return changed if validate_only else await self._save(changed)

    def _configured(self, topic: Topic, configs: Mapping[str, str]) -> Topic:
        return replace(topic, configs=dict(configs), log_config=LogConfig.parse(configs, self.defaults))

    async def delete(self, name: str) -> Topic:
        topic = self.get(name)
        if not await self._store.swap([Change(f"/topics/{name}", None, topic.revision)]):
            raise KafkaError(ErrorCode.request_timed_out, f"topic {name} was changed by somebody else")
        self.by_name.pop(name, None)  # a watch may have been faster
        self.by_id.pop(topic.topic_id.bytes, None)
        return topic

    async def note_epochs(self, epochs: Mapping[tuple[bytes, int], int]) -> None:
        """Write down the epochs this broker now leads in, all topics in one go."""
        changed = []
        for topic in self.by_name.values():
            partitions = tuple(
                replace(info, leader_epoch=epochs.get((topic.topic_id.bytes, index), info.leader_epoch))
                for index, info in enumerate(topic.partitions)
            )
            if partitions != topic.partitions:
                changed.append(replace(topic, partitions=partitions))
        await self._save_all(changed)

    def get(self, name: str) -> Topic:
        topic = self.by_name.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        return topic

    async def next_producer_id(self) -> int:
        """Ids come in blocks taken by compare-and-swap, so that no two brokers give out the same (R5)."""
        for producer_id in self._producer_ids:
            return producer_id
        while True:
            found = await self._store.get("/producer-ids")
            start, revision = (found.value["next"], found.revision) if found else (0, 0)
            if await self._store.swap(
                [Change("/producer-ids", {"next": start + PRODUCER_ID_BLOCK}, revision)]
            ):
                self._producer_ids = iter(range(start + 1, start + PRODUCER_ID_BLOCK))
                return int(start)

    def _new_partition(self) -> PartitionInfo:
        return PartitionInfo(self._broker_id, -1, (self._broker_id,), (self._broker_id,))

    async def _save(self, topic: Topic) -> Topic:
        await self._save_all([topic])
        return self.by_name[topic.name]

    async def _save_all(self, topics: list[Topic]) -> None:
        if not topics:
            return
        changes = [Change(f"/topics/{topic.name}", _encode(topic), topic.revision) for topic in topics]
        if not await self._store.swap(changes):
            names = ", ".join(topic.name for topic in topics)
            raise KafkaError(ErrorCode.request_timed_out, f"{names}: changed by somebody else, try again")
        for topic in topics:
            stored = await self._store.get(f"/topics/{topic.name}")
            assert stored is not None
            self._keep(self._decode(stored))

    def _keep(self, topic: Topic) -> None:
        self.by_name[topic.name] = topic
        self.by_id[topic.topic_id.bytes] = topic

    def _decode(self, entry: Versioned) -> Topic:
        value = entry.value
        configs = still_taken(value["configs"])
        partitions = tuple(
            PartitionInfo(leader, epoch, tuple(replicas), tuple(in_sync))
            for leader, epoch, replicas, in_sync in value["partitions"]
        )
        # A newer broker may know configs that this one doesn't: they meet in every rolling upgrade.
        known = {name: text for name, text in configs.items() if name in TOPIC_CONFIGS}
        return Topic(
            entry.key.removeprefix("/topics/"),
            uuid.UUID(value["id"]),
            configs,
            partitions,
            entry.revision,
            LogConfig.parse(known, self.defaults),
            # Earlier versions didn't write it down: there it is what they list.
            value.get("replication") or max(len(info.replicas) for info in partitions),
        )


def _encode(topic: Topic) -> Any:
    return {
        "id": str(topic.topic_id),
        "configs": dict(topic.configs),
        "replication": topic.replication,
        "partitions": [
            [info.leader, info.leader_epoch, list(info.replicas), list(info.in_sync)]
            for info in topic.partitions
        ],
    }
