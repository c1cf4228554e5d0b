"""Where topics are put: the directory, with how many replicas they shall have and who shall have none.

    /drained/<broker>   an operator's word that it gets no replicas; gone when the broker starts again

Made by the server and by `penstock cluster`. A broker of an earlier version doesn't know the key and passes
it over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.cluster import placement
from penstock.cluster.directory import ClusterDirectory
from penstock.cluster.metadata import Change, MetadataStore, Versioned
from penstock.cluster.partitions import PartitionKey
from penstock.cluster.topics import Topic
from penstock.wire.errors import ErrorCode, KafkaError

DRAINED: Final = "/drained/"


class PlacingDirectory(ClusterDirectory):
    def __init__(self, store: MetadataStore, broker_id: int, defaults: Mapping[str, str]) -> None:
        super().__init__(store, broker_id, defaults)
        self.drained: set[int] = set()

    # What is known

    def racks(self) -> dict[int, str | None]:
        """Of those that may get replicas."""
        return {broker: rack for broker, rack in super().racks().items() if broker not in self.drained}

    def wanted(self) -> dict[PartitionKey, int]:
        """How many replicas each partition shall have."""
        return {
            (topic.topic_id.bytes, index): topic.replication
            for topic in self.by_name.values()
            for index in range(len(topic.partitions))
        }

    def apply(self, entry: Versioned) -> None:
        if not entry.key.startswith(DRAINED):
            super().apply(entry)
            return
        broker = int(entry.key.removeprefix(DRAINED))
        (self.drained.discard if entry.value is None else self.drained.add)(broker)

    def _forget_all_but(self, there: set[str]) -> None:
        super()._forget_all_but(there)
        self.drained = {broker for broker in self.drained if f"{DRAINED}{broker}" in there}

    # Changing topics

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
        if not assignments:
            self._check_room(replication)
        return await super().create(
            name, partitions, configs, replication, assignments, validate_only=validate_only
        )

    async def add_partitions(
        self,
        name: str,
        count: int,
        assignments: list[list[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> Topic:
        """On the brokers in `assignments`, one list for each new partition; without, with as many replicas as
        the topic shall have, or as there are brokers for now."""
        topic = self.get(name)
        self._check_growth(topic, count)
        more = count - len(topic.partitions)
        if assignments:
            added = self._assigned(assignments, more)
        else:
            racks = self.racks()
            replication = min(topic.replication, max(1, len(racks)))
            self._check_room(replication)
            added = placement.place(racks, more, replication, self._all_replicas())
        grown = replace(topic, partitions=topic.partitions + tuple(map(self._unled, added)))
        return grown if validate_only else await self._save_and_wait(grown)

    def _assigned(self, assignments: list[list[int]], count: int) -> list[tuple[int, ...]]:
        if len(assignments) != count:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"{count} new partitions, but brokers for {len(assignments)}",
            )
        self._check_assignments(dict(enumerate(assignments)))
        return [tuple(replicas) for replicas in assignments]

    async def want(self, name: str, replication: int) -> None:
        """From now on this many replicas; who puts them there is another matter."""
        await self._save(replace(self.get(name), replication=replication))

    def _check_room(self, replication: int) -> None:
        racks = self.racks()
        out = sorted(self.drained & self.brokers.keys())
        if out and replication > len(racks):
            raise KafkaError(
                ErrorCode.invalid_replication_factor,
                f"replication factor {replication}: without those that are drained, {out}, there are "
                f"{len(racks)} brokers; `penstock cluster drain ID --undo` or a restart brings one back",
            )

    # Drained brokers

    async def drain(self, broker: int) -> None:
        await _mark(self._store, broker, drained=True)

    async def undrain(self, broker: int) -> bool:
        """False if it wasn't drained."""
        return await _mark(self._store, broker, drained=False)


async def _mark(store: MetadataStore, broker: int, *, drained: bool) -> bool:
    key = f"{DRAINED}{broker}"
    while True:
        found = await store.get(key)
        if (found is not None) == drained:
            return False
        if await store.swap([Change(key, {} if drained else None, found.revision if found else 0)]):
            return True
