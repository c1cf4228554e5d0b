"""The cluster's metadata as this broker last heard it: one watch, one cache, listeners told of changes.

Handlers read it on the event loop without waiting; while etcd is away it simply stays as it is. It also
places topics: on brokers that live and are not drained.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from penstock.cluster import membership, partitions, placement
from penstock.cluster.membership import BrokerInfo
from penstock.cluster.metadata import Change, MetadataStore, Update, Versioned
from penstock.cluster.partitions import NOBODY, PartitionKey, PartitionState
from penstock.cluster.topics import CLUSTER_KEY, MAX_PARTITIONS, PartitionInfo, Topic, TopicRegistry
from penstock.wire.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

_TOPICS: Final = "/topics/"
_DRAINED: Final = "/drained/"
"""With a broker's number: it gets no replicas until it starts again, or until an operator undoes it."""
_PATIENCE: Final = 5.0


class Listener(Protocol):
    """Who must act on changes; called on the event loop, in the order of etcd's revisions."""

    def topic_changed(self, topic: Topic) -> None: ...

    def topic_deleted(self, topic: Topic) -> None: ...

    def partition_changed(self, key: PartitionKey) -> None: ...

    def brokers_changed(self) -> None: ...


class ClusterDirectory(TopicRegistry):
    """A registry that is filled by a watch and whose partitions have keys of their own."""

    def __init__(self, store: MetadataStore, broker_id: int, defaults: Mapping[str, str]) -> None:
        super().__init__(store, broker_id, defaults)
        self.states: dict[PartitionKey, PartitionState] = {}
        self.brokers: dict[int, BrokerInfo] = {}
        """Those with a living lease."""
        self.registered: dict[int, int] = {}
        """At which revision each of them did that: a process that began since may have lost its logs."""
        self.addresses: dict[int, BrokerInfo] = {}
        """Everybody ever seen: a leader that lost its lease may still be served by."""
        self.left: dict[int, float] = {}
        """When those without a lease lost it, by the event loop's clock."""
        self.drained: set[int] = set()
        """Who gets no replicas, by an operator's word."""
        self.listeners: list[Listener] = []
        self.foreign = False
        """True while etcd tells of another cluster than ours, or of none: then nothing is believed."""
        self._loaded = asyncio.Event()
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Wait for the first whole picture (for as long as etcd takes), then follow."""
        self._task = asyncio.create_task(self._follow(), name="metadata-watch")
        await self._loaded.wait()
        await self._load_cluster_id()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def swap(self, changes: Sequence[Change]) -> bool:
        return await self._store.swap(changes)

    # What is known

    def state_of(self, key: PartitionKey) -> PartitionState | None:
        return self.states.get(key)

    def placed(self, key: PartitionKey) -> tuple[int, ...]:
        """The replicas of a partition, by its key or, before its first election, by its topic."""
        state = self.states.get(key)
        if state is not None:
            return state.replicas
        topic = self.by_id.get(key[0])
        return topic.partitions[key[1]].replicas if topic and key[1] < len(topic.partitions) else ()

    def is_on(self, key: PartitionKey, broker: int) -> bool:
        """Whether that broker has to keep a log of it: it is placed there, or its log still counts."""
        state = self.states.get(key)
        return broker in (self.placed(key) if state is None else state.brokers)

    def racks(self) -> dict[int, str | None]:
        """Of those that may get replicas."""
        return {number: broker.rack for number, broker in self.brokers.items() if number not in self.drained}

    def wanted(self) -> dict[PartitionKey, int]:
        """How many replicas each partition shall have."""
        return {
            (topic.topic_id.bytes, index): topic.replication
            for topic in self.by_name.values()
            for index in range(len(topic.partitions))
        }

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
        if assignments:
            self._check_assignments(assignments)
            placed = [tuple(assignments[index]) for index in range(len(assignments))]
        else:
            # Sizes are checked by the registry; here only what the brokers can hold.
            self._check_room(replication)
            placed = placement.place(
                self.racks(), max(0, min(partitions, MAX_PARTITIONS + 1)), replication, self._all_replicas()
            )
        topic = self._new_topic(name, configs, [self._unled(replicas) for replicas in placed])
        return topic if validate_only else await self._save_and_wait(topic)

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

    async def want(self, name: str, replication: int) -> None:
        """From now on this many replicas; who puts them there is another matter."""
        await self._save(replace(self.get(name), replication=replication))

    async def mark_drained(self, broker: int, drained: bool) -> bool:
        """False if it was so already. Then, or soon, the watch has told of it, and so of all that was placed
        before."""
        key = f"{_DRAINED}{broker}"
        changed = False
        while not changed:
            found = await self._store.get(key)
            if (found is not None) == drained:
                break
            change = Change(key, {} if drained else None, found.revision if found else 0)
            changed = await self._store.swap([change])
        await self._until(lambda: (broker in self.drained) == drained, _PATIENCE)
        return changed

    async def configure(self, name: str, configs: Mapping[str, str], *, validate_only: bool = False) -> Topic:
        changed = self._configured(self.get(name), configs)
        return changed if validate_only else await self._save_and_wait(changed)

    async def delete(self, name: str) -> Topic:
        topic = await super().delete(name)
        self._drop(topic)
        for index in range(len(topic.partitions)):  # only for tidiness: ids are never used again
            key = (topic.topic_id.bytes, index)
            state = self.states.pop(key, None)
            if state is not None:
                await self._store.swap([Change(partitions.path_of(key), None, state.revision)])
        return topic

    async def note_epochs(self, epochs: Mapping[tuple[bytes, int], int]) -> None:
        """Epochs are in the partitions' own keys here."""

    async def led(self, name: str, timeout: float = _PATIENCE) -> None:
        """Wait until every partition of a topic has a leader, or the time is up."""

        def all_led() -> bool:
            topic = self.by_name.get(name)
            return topic is None or all(info.leader != NOBODY for info in topic.partitions)

        await self._until(all_led, timeout)

    async def _save_and_wait(self, topic: Topic) -> Topic:
        topic = await self._save(topic)
        for listener in self.listeners:  # the watch will say the same again
            listener.topic_changed(topic)
        await self.led(topic.name)
        return self.get(topic.name)

    async def _until(self, condition: object, timeout: float) -> None:
        assert callable(condition)
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            pass

    def _all_replicas(self) -> list[tuple[int, ...]]:
        return [info.replicas for topic in self.by_name.values() for info in topic.partitions]

    def _check_assignments(self, assignments: Mapping[int, list[int]]) -> None:
        if sorted(assignments) != list(range(len(assignments))):
            raise KafkaError(ErrorCode.invalid_replica_assignment, "partitions must be numbered from 0 on")
        for index, replicas in assignments.items():
            if not replicas or len(set(replicas)) != len(replicas):
                raise KafkaError(
                    ErrorCode.invalid_replica_assignment, f"partition {index} on brokers {replicas}"
                )
            unknown = set(replicas) - self.brokers.keys()
            if unknown:
                raise KafkaError(
                    ErrorCode.invalid_replica_assignment, f"brokers {sorted(unknown)} are not here"
                )

    def _assigned(self, assignments: list[list[int]], count: int) -> list[tuple[int, ...]]:
        if len(assignments) != count:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"{count} new partitions, but brokers for {len(assignments)}",
            )
        self._check_assignments(dict(enumerate(assignments)))
        return [tuple(replicas) for replicas in assignments]

    def _check_room(self, replication: int) -> None:
        racks = self.racks()
        out = sorted(self.drained & self.brokers.keys())
        if out and replication > len(racks):
            raise KafkaError(
                ErrorCode.invalid_replication_factor,
                f"replication factor {replication}: without those that are drained, {out}, there are "
                f"{len(racks)} brokers; `penstock cluster drain ID --undo` or a restart brings one back",
            )

    @staticmethod
    def _unled(replicas: tuple[int, ...]) -> PartitionInfo:
        return PartitionInfo(NOBODY, -1, replicas, ())

    # The watch

    async def _follow(self) -> None:
        async for update in self._store.watch("/"):
            self._recognise(update)
            if self.foreign:
                continue
            if update.whole:
                try:
                    self._forget_all_but({entry.key for entry in update.entries})
                except Exception:  # the watch has to go on
                    log.exception("what etcd has no more could not be forgotten")
            for entry in sorted(update.entries, key=_order) if update.whole else update.entries:
                try:
                    self.apply(entry)
                except Exception:  # one key's trouble, and no other's
                    log.exception("%s makes no sense", entry.key)
            self._loaded.set()
            async with self._changed:
                self._changed.notify_all()

    def _recognise(self, update: Update) -> None:
        """An etcd that lost its data tells of no topics: believing that would delete every log."""
        told = next((entry for entry in update.entries if entry.key == CLUSTER_KEY), None)
        if not self.cluster_id or (told is None and not update.whole):
            return
        was = self.foreign
        self.foreign = told is None or told.value is None or told.value["id"] != self.cluster_id
        if self.foreign and not was:
            log.error(
                "etcd has forgotten cluster %s, or serves another one: nothing is taken from it, every log "
                "stays. Restore etcd from a backup and restart the brokers",
                self.cluster_id,
            )

    def _forget_all_but(self, there: set[str]) -> None:
        for name in [name for name in self.by_name if f"{_TOPICS}{name}" not in there]:
            self.apply(Versioned(f"{_TOPICS}{name}", None, 0))
        for broker in [broker for broker in self.brokers if f"{membership.PREFIX}{broker}" not in there]:
            self.apply(Versioned(f"{membership.PREFIX}{broker}", None, 0))
        self.drained = {broker for broker in self.drained if f"{_DRAINED}{broker}" in there}

    def apply(self, entry: Versioned) -> None:
        """Take one key's news. Old news (a watch behind our own swaps) changes nothing."""
        if entry.key.startswith(_TOPICS):
            self._apply_topic(entry)
        elif entry.key.startswith(partitions.PREFIX):
            self._apply_partition(entry)
        elif entry.key.startswith(membership.PREFIX):
            self._apply_broker(entry)
        elif entry.key.startswith(_DRAINED):
            broker = int(entry.key.removeprefix(_DRAINED))
            (self.drained.discard if entry.value is None else self.drained.add)(broker)

    def _apply_topic(self, entry: Versioned) -> None:
        known = self.by_name.get(entry.key.removeprefix(_TOPICS))
        if entry.value is None:
            if known is not None and (entry.revision == 0 or entry.revision > known.revision):
                del self.by_name[known.name]
                del self.by_id[known.topic_id.bytes]
                self._drop(known)
            return
        if known is not None and known.revision >= entry.revision:
            return
        topic = self._decode(entry)
        if known is not None and known.topic_id != topic.topic_id:
            del self.by_id[known.topic_id.bytes]
            self._drop(known)
        self._keep(topic)
        for listener in self.listeners:
            listener.topic_changed(self.by_name[topic.name])

    def _apply_partition(self, entry: Versioned) -> None:
        if entry.value is None:
            return
        key = partitions.key_of(entry.key)
        self.note_state(key, partitions.decode(entry))

    def note_state(self, key: PartitionKey, state: PartitionState) -> None:
        """News of a partition, from the watch or from a swap of our own."""
        known = self.states.get(key)
        if known is not None and known.revision >= state.revision:
            return
        self.states[key] = state
        topic = self.by_id.get(key[0])
        if topic is not None:
            self._keep(topic)
        for listener in self.listeners:
            listener.partition_changed(key)

    def _apply_broker(self, entry: Versioned) -> None:
        broker_id = int(entry.key.removeprefix(membership.PREFIX))
        if entry.value is None:
            self.registered.pop(broker_id, None)
            if self.brokers.pop(broker_id, None) is not None:
                self.left[broker_id] = asyncio.get_running_loop().time()
        else:
            self.left.pop(broker_id, None)
            self.registered[broker_id] = entry.revision
            self.brokers[broker_id] = self.addresses[broker_id] = BrokerInfo.decode(entry.value)
        for listener in self.listeners:
            listener.brokers_changed()

    def _keep(self, topic: Topic) -> None:
        super()._keep(replace(topic, partitions=self._overlaid(topic)))

    def _overlaid(self, topic: Topic) -> tuple[PartitionInfo, ...]:
        """The partitions with what their own keys say; the topic's key has only their first placement."""
        topic_id = topic.topic_id.bytes
        result = []
        for index, info in enumerate(topic.partitions):
            state = self.states.get((topic_id, index))
            if state is None:
                result.append(info)
                continue
            in_sync = tuple(member.broker for member in state.in_sync)
            result.append(PartitionInfo(state.leader, state.epoch, state.replicas, in_sync))
        return tuple(result)

    def _drop(self, topic: Topic) -> None:
        for listener in self.listeners:
            listener.topic_deleted(topic)


def _order(entry: Versioned) -> int:
    """In a whole picture: brokers, then partitions, then topics, so that a topic comes complete."""
    if entry.key.startswith(membership.PREFIX):
        return 0
    return 1 if entry.key.startswith(partitions.PREFIX) else 2
