"""This broker as one of several: registration, replication, and what leadership means for what it serves.

Made by the server when `cluster` is set. Topics and leaders come from the directory; the catalog follows
it, group coordinators move with the partitions of `__consumer_offsets`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Final

from penstock.broker.catalog import Catalog
from penstock.broker.context import Address, BrokerContext
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.groups.journal import partition_for
from penstock.broker.groups.takeover import take_over
from penstock.broker.topics import OFFSETS_CONFIG, TopicKeeper
from penstock.cluster.directory import ClusterDirectory
from penstock.cluster.etcd import EtcdMetadata
from penstock.cluster.membership import BrokerInfo, Registration
from penstock.cluster.topics import OFFSETS_TOPIC, Topic
from penstock.log.partition import PartitionLog
from penstock.log.store import LogStore
from penstock.replication.channel import TcpNetwork
from penstock.replication.courtesy import thread_demand
from penstock.replication.replica import Replica
from penstock.replication.replicator import Patience, Replicator
from penstock.settings import Settings
from penstock.wire.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

_RETRY: Final = 0.5
FAREWELL: Final = 5.0
"""Seconds for which clients still hear of a broker that left."""


class ClusterNode:
    def __init__(
        self,
        settings: Settings,
        metadata: EtcdMetadata,
        directory: ClusterDirectory,
        store: LogStore,
        catalog: Catalog,
    ) -> None:
        self._settings = settings
        self.metadata = metadata
        self.directory = directory
        self._store = store
        self._catalog = catalog
        self.replicator = Replicator(
            broker_id=settings.broker_id,
            directory=directory,
            metadata=metadata,
            store=store,
            network=TcpNetwork(),
            patience=Patience(suspicion=settings.suspicion_ms / 1000),
            demand=thread_demand,
            on_leading=self._leading,
            on_ended=self._ended,
            on_topic=self._serve,
        )
        self._groups: GroupCoordinator | None = None
        self._registration: Registration | None = None
        self._has_caught_up = False
        self._tasks: set[asyncio.Task[None]] = set()

    # Life

    async def start(
        self, groups: GroupCoordinator, keeper: ClusterKeeper, address: Address, external: Address | None
    ) -> None:
        """Take part: clients can be served as soon as leaders are elected."""
        settings = self._settings
        self._groups = groups
        listen = Address.parse(settings.replication_listen)
        await self.replicator.listen((listen.host, listen.port))
        advertised = (
            Address.parse(settings.replication_advertise)
            if settings.replication_advertise is not None
            else Address(
                address.host if listen.host in ("0.0.0.0", "::") else listen.host, self.replicator.port
            )
        )
        info = BrokerInfo(
            settings.broker_id,
            address.host,
            address.port,
            advertised.host,
            advertised.port,
            settings.rack,
            self._store.incarnation,
            settings.http,
            "" if external is None else str(external),
        )
        if await self.directory.mark_drained(settings.broker_id, False):
            log.info("broker %d was drained; it is back and takes replicas", settings.broker_id)
        self._registration = Registration(self.metadata, info, settings.lease_seconds)
        await self._registration.start()
        self.directory.listeners.append(_Catalogued(self._catalog, keeper))
        self.replicator.start()
        self._spawn(self._make_offsets_topic(keeper))

    def unready_reason(self) -> str | None:
        """Why this broker isn't a full member now: out of touch, or, after its start, still catching up.

        Once it has caught up, a replica that falls behind is the leader's affair. Before that, whoever
        restarts brokers one by one must wait: the next one may hold the only other copy.
        """
        if self.metadata.gone_back:
            return "etcd has gone back to an earlier state: serving goes on, elections and topics wait"
        if not self.metadata.reachable:
            return "out of touch with etcd: serving goes on, elections and topics wait"
        if self.directory.foreign:
            return "etcd has forgotten this cluster: serving goes on, elections and topics wait"
        if self._has_caught_up:
            return None
        behind = sum(self._is_behind(replica) for replica in self.replicator.replicas.values())
        self._has_caught_up = not behind
        return f"catching up: {behind} partitions are not in sync yet" if behind else None

    def _is_behind(self, replica: Replica) -> bool:
        """It has a leader that lives, and is not in its set (with the storage it has now)."""
        state = self.directory.state_of(replica.key)
        if state is None or replica.leadership is not None or state.leader not in self.directory.brokers:
            return False
        return not state.has(*replica.member)

    async def leave(self) -> None:
        """The first thing of a clean stop: others lead before this broker closes its door."""
        await self.replicator.leave()
        if self._registration is not None:
            await self._registration.leave()

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self.replicator.stop()
        await self.directory.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make_offsets_topic(self, keeper: ClusterKeeper) -> None:
        """Somebody makes `__consumer_offsets`, once there are brokers enough for its replicas."""
        while OFFSETS_TOPIC not in self.directory.by_name:
            try:
                await keeper.ensure(OFFSETS_TOPIC)
            except KafkaError as error:
                log.debug("%s: %s", OFFSETS_TOPIC, error)
            await asyncio.sleep(_RETRY)

    # What clients are told

    def brokers(self) -> dict[int, BrokerInfo]:
        """Those alive, and those that lead although their lease ran out: they are served by all the same.

        And those that left just now: librdkafka that hears of a new leader and no more of the old one in one
        answer loses the partition between the two, until it looks for such once a second.
        """
        found = dict(self.directory.brokers)
        now = asyncio.get_running_loop().time()
        for broker, at in self.directory.left.items():
            if now - at < FAREWELL:
                found[broker] = self.directory.addresses[broker]
        for state in self.directory.states.values():
            leader = self.directory.addresses.get(state.leader)
            if leader is not None and state.leader not in found:
                found[state.leader] = leader
        return dict(sorted(found.items()))

    @property
    def controller(self) -> int:
        """Any broker can change the cluster, and clients want one name.

        This one surely lives; for one that was killed a moment ago they would wait long.
        """
        me, registered = self._settings.broker_id, self.directory.brokers
        return me if me in registered else min(registered, default=me)

    def coordinator_of(self, group: str) -> BrokerInfo | None:
        """By the partitions that the topic has: this broker's setting may be another than its maker's."""
        topic = self.directory.by_name.get(OFFSETS_TOPIC)
        if topic is None:
            return None
        return self.brokers().get(topic.partitions[partition_for(group, len(topic.partitions))].leader)

    # What replication says

    def _serve(self, topic: Topic) -> None:
        """The topic as it is known now, with the logs that are here."""
        topic = self.directory.by_name.get(topic.name, topic)
        topic_id = topic.topic_id.bytes
        self._store.configure(topic_id, topic.log_config)
        replicas = self.replicator.replicas
        here = [
            replicas[topic_id, index].log
            for index in range(len(topic.partitions))
            if (topic_id, index) in replicas
        ]
        self._catalog.put(topic, here)

    def _leading(self, partition: PartitionLog) -> None:
        if partition.topic == OFFSETS_TOPIC:
            assert self._groups is not None
            self._spawn(take_over(partition, self._groups))

    def _ended(self, partition: PartitionLog) -> None:
        if partition.topic == OFFSETS_TOPIC and self._groups is not None:
            self._groups.unload(partition.partition)


class _Catalogued:
    """Takes topics out of the catalog when they are deleted, wherever that was done."""

    def __init__(self, catalog: Catalog, keeper: ClusterKeeper) -> None:
        self._catalog = catalog
        self._keeper = keeper

    def topic_deleted(self, topic: Topic) -> None:
        served = self._catalog.by_id.get(topic.topic_id.bytes)
        if served is not None:
            self._catalog.remove(topic.name)
            self._keeper.forgotten(topic.name)

    def topic_changed(self, topic: Topic) -> None: ...

    def partition_changed(self, key: tuple[bytes, int]) -> None: ...

    def brokers_changed(self) -> None: ...


class ClusterKeeper(TopicKeeper):
    """Topics of a cluster: any broker writes down what is wanted, replication everywhere does the rest."""

    def __init__(self, context: BrokerContext, directory: ClusterDirectory) -> None:
        super().__init__(context)
        self._directory = directory

    async def open_all(self) -> None:
        """Replication opens what this broker has."""

    async def ensure(self, name: str) -> Topic:
        existing = self._directory.by_name.get(name)
        if existing is not None:
            return existing
        defaults = self._context.defaults
        internal = name == OFFSETS_TOPIC
        replication = defaults.replication
        brokers = len(self._directory.racks())
        if internal and brokers < replication:
            raise KafkaError(
                ErrorCode.coordinator_not_available,
                f"waiting for {replication} brokers before {OFFSETS_TOPIC} is made",
            )
        create = partial(self._directory.create, name)
        async with self._lock:
            try:
                if internal:
                    return await create(defaults.offsets_partitions, OFFSETS_CONFIG, replication)
                return await create(defaults.partitions, {}, min(replication, max(1, brokers)))
            except KafkaError:
                for _ in range(20):  # another broker may have made it at the same time
                    found = self._directory.by_name.get(name)
                    if found is not None:
                        return found
                    await asyncio.sleep(0.05)
                raise

    async def add_partitions(
        self, name: str, count: int, assignments: list[list[int]], *, validate_only: bool
    ) -> None:
        async with self._lock:
            await self._directory.add_partitions(name, count, assignments, validate_only=validate_only)

    async def configure(self, name: str, configs: Mapping[str, str], *, validate_only: bool) -> None:
        async with self._lock:
            await self._directory.configure(name, configs, validate_only=validate_only)

    async def delete(self, name: str) -> Topic:
        async with self._lock:
            return await self._directory.delete(name)

    def forgotten(self, name: str) -> None:
        for listener in self._context.on_topic_deleted:
            listener(name)

    async def _open(self, topic: Topic, first: int) -> Topic:
        return self._directory.get(topic.name)
