"""The broker: start-up, serving, shutdown, in that order.

Everything runs on one event loop. `start` brings the logs back before the first client is let in;
`stop` shuts the door, drains write-behind and leaves shared memory for the next process.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import resource
import socket
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import IO, Final, cast

from penstock.broker.admin import AdminHandlers
from penstock.broker.buffers import BufferPool
from penstock.broker.catalog import Catalog
from penstock.broker.cluster import ClusterKeeper, ClusterNode
from penstock.broker.connection import Connection
from penstock.broker.context import Address, BrokerContext, TopicDefaults
from penstock.broker.dispatch import Dispatcher, GroupHandler, Handler
from penstock.broker.fetch import FetchHandler
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.groups.model import GroupSettings
from penstock.broker.http.server import HttpServer
from penstock.broker.metadata import MetadataHandlers
from penstock.broker.offsets import OffsetHandlers
from penstock.broker.offsetslog import ConsumerOffsets
from penstock.broker.produce import ProduceHandler
from penstock.broker.stats import RequestStats
from penstock.broker.topics import TopicKeeper
from penstock.cluster.directory import ClusterDirectory
from penstock.cluster.etcd import EtcdMetadata, endpoints_of
from penstock.cluster.metadata import MetadataStore, SqliteMetadata
from penstock.cluster.topics import OFFSETS_TOPIC, TopicRegistry
from penstock.log.store import LogStore
from penstock.settings import Settings
from penstock.wire.apis import ApiKey
from penstock.wire.errors import KafkaError
from penstock.wire.records import CorruptRecords

log = logging.getLogger(__name__)

_GROUP_EXPIRY_SECONDS: Final = 60.0
_PROBES_AFTER: Final = 1.0


class AlreadyRunning(Exception):
    """Another broker process uses the same data directory."""


class Broker:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started_at = time.time()
        self.ready = False
        self.opened = False
        """True once it was ready for the first time: before that most of it isn't there."""
        self._stopping = False
        self.connections: set[Connection] = set()
        self.stats = RequestStats()
        self.catalog = Catalog()
        self._servers: list[asyncio.Server] = []
        self._address: Address | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # Life

    async def start(self) -> None:
        settings = self.settings
        _raise_descriptor_limit()
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        self._lock = _lock_directory(settings.data_dir)
        wanted = Address.parse(settings.listen)
        self._socket = _bind(wanted)
        self.listen_address = Address(wanted.host, self._socket.getsockname()[1])
        self._external_socket = (
            _bind(Address.parse(settings.external_listen)) if settings.external_listen else None
        )
        self.http = HttpServer(settings.http)
        directory = self._open_metadata()
        await self.registry.load()
        self.store = LogStore(
            broker_id=settings.broker_id,
            memory_root=settings.shm_dir,
            cursors_root=settings.cursors_dir,
            disk_root=settings.data_dir,
            memory_budget=settings.memory,
            retention_seconds=settings.retention_check_seconds,
        )
        self.buffers = BufferPool(settings.request_memory)
        self.cluster = None
        if directory is not None:
            assert isinstance(self.metadata_store, EtcdMetadata)
            self.cluster = ClusterNode(settings, self.metadata_store, directory, self.store, self.catalog)
        self.context = BrokerContext(
            broker_id=settings.broker_id,
            rack=settings.rack,
            address=self.address,
            spark_host=settings.spark_host,
            registry=self.registry,
            catalog=self.catalog,
            store=self.store,
            stats=self.stats,
            defaults=TopicDefaults(
                settings.default_partitions,
                settings.auto_create_topics,
                settings.offsets_partitions,
                settings.default_replication if self.cluster is not None else 1,
            ),
            on_topic_deleted=[self._forget_topic],
            cluster=self.cluster,
        )
        self.keeper = TopicKeeper(self.context)
        if directory is not None:
            self.keeper = ClusterKeeper(self.context, directory)
        self.offsets_log = ConsumerOffsets(self.context)
        self.groups = GroupCoordinator(
            self.offsets_log,
            self.catalog,
            GroupSettings(initial_rebalance_delay_ms=settings.group_initial_rebalance_ms),
        )
        self.store.start()
        probes = asyncio.get_running_loop().call_later(_PROBES_AFTER, self._answer_probes)
        if self.cluster is None:
            await self._serve_all()
        self.fetch = FetchHandler(self.catalog, self.stats, settings.max_fetch)
        external = self._external_address()
        self._address = self._own_address()
        if self.cluster is not None:
            assert isinstance(self.keeper, ClusterKeeper)
            await self.cluster.start(self.groups, self.keeper, self.address(), external)
        await self._listen(external)  # not before topics are known: clients would hear that there are none
        self._spawn(self._expire_groups())
        self.ready = self.opened = True
        probes.cancel()
        await self.http.start(self)

    def _answer_probes(self) -> None:
        """The start takes long: say so at /readyz. Importing what that takes would hold up a short one."""
        self._spawn(self.http.start(self))

    def _open_metadata(self) -> ClusterDirectory | None:
        """The store and the registry on it: embedded for a single node, etcd for one of several."""
        settings = self.settings
        if not settings.cluster:
            self.metadata_store: MetadataStore = SqliteMetadata(settings.data_dir / "metadata.db")
            self.registry = TopicRegistry(self.metadata_store, settings.broker_id, settings.topic_defaults)
            return None
        self.metadata_store = EtcdMetadata(endpoints_of(settings.cluster), settings.cluster_prefix)
        directory = ClusterDirectory(self.metadata_store, settings.broker_id, settings.topic_defaults)
        self.registry = directory
        return directory

    async def _serve_all(self) -> None:
        """A single node leads everything from the start."""
        await self.keeper.open_all()
        await self.keeper.ensure(OFFSETS_TOPIC)
        for partition in range(self.offsets_log.partitions):
            try:
                await self.groups.load(partition)
            except (CorruptRecords, KafkaError) as error:
                # Its groups are answered NOT_COORDINATOR; all others are served.
                log.error("group offsets: partition %d can't be loaded: %s", partition, error)

    def _wire_up(self, external: Address | None) -> tuple[Dispatcher, Dispatcher]:
        """What serves the door, and what serves the second one: they differ in the addresses they tell."""
        admin = AdminHandlers(self.context, self.keeper, self._public_settings())
        offsets = OffsetHandlers(self.context)
        groups = self.groups
        handlers: dict[ApiKey, Handler] = {
            ApiKey.LIST_OFFSETS: offsets.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
            ApiKey.CREATE_TOPICS: admin.create_topics,
            ApiKey.DELETE_TOPICS: admin.delete_topics,
            ApiKey.CREATE_PARTITIONS: admin.create_partitions,
            ApiKey.DELETE_RECORDS: admin.delete_records,
            ApiKey.INIT_PRODUCER_ID: admin.init_producer_id,
            ApiKey.DESCRIBE_CONFIGS: admin.describe_configs,
            ApiKey.ALTER_CONFIGS: admin.alter_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: admin.incremental_alter_configs,
            ApiKey.DESCRIBE_LOG_DIRS: admin.describe_log_dirs,
        }
        group_handlers: dict[ApiKey, GroupHandler] = {
            ApiKey.JOIN_GROUP: groups.join_group,
            ApiKey.SYNC_GROUP: groups.sync_group,
            ApiKey.HEARTBEAT: groups.heartbeat,
            ApiKey.LEAVE_GROUP: groups.leave_group,
            ApiKey.OFFSET_COMMIT: groups.offset_commit,
            ApiKey.OFFSET_FETCH: groups.offset_fetch,
            ApiKey.OFFSET_DELETE: groups.offset_delete,
            ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
            ApiKey.LIST_GROUPS: groups.list_groups,
            ApiKey.DELETE_GROUPS: groups.delete_groups,
        }
        produce = ProduceHandler(self.catalog, self.store, self.stats)

        def dispatcher(metadata: MetadataHandlers) -> Dispatcher:
            told: dict[ApiKey, Handler] = {
                ApiKey.METADATA: metadata.metadata,
                ApiKey.FIND_COORDINATOR: metadata.find_coordinator,
                ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
            }
            return Dispatcher(self.context, produce, self.fetch, handlers | told, group_handlers)

        return (
            dispatcher(MetadataHandlers(self.context, self.keeper)),
            dispatcher(MetadataHandlers(self.context, self.keeper, external)),
        )

    def _external_address(self) -> Address | None:
        if self._external_socket is None:
            return None
        host, port = self._external_socket.getsockname()[:2]
        told = self.settings.external_advertise
        return Address(host, port) if told is None else Address.parse(told)

    def _own_address(self) -> Address:
        """What clients are told."""
        if self.settings.advertise is not None:
            return Address.parse(self.settings.advertise)
        address = self.listen_address
        if address.host in ("0.0.0.0", "::", ""):
            return Address(socket.gethostname(), address.port)
        return address

    async def _listen(self, external: Address | None) -> None:
        loop = asyncio.get_running_loop()
        inside, outside = self._wire_up(external)
        for door, dispatcher in ((self._socket, inside), (self._external_socket, outside)):
            if door is not None:
                accept = cast(Callable[[], asyncio.BufferedProtocol], partial(self._accept, dispatcher))
                self._servers.append(await loop.create_server(accept, sock=door, backlog=512))

    def address(self) -> Address:
        assert self._address is not None, "asked before the socket was bound"
        return self._address

    def unready_reason(self) -> str | None:
        """Why clients should go elsewhere for now; None while all is well."""
        if self._stopping:
            return "stopping"
        if not self.ready:
            return f"starting: {self.store.progress}"
        failure = self.store.write_behind.failure
        if failure is not None:
            return f"the disk refuses to take the log: {failure}"
        return None if self.cluster is None else self.cluster.unready_reason()

    async def stop(self) -> None:
        self._stopping = True
        self.ready = False
        if self.cluster is not None:
            await self.cluster.leave()
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        for connection in list(self.connections):
            connection.close()
        for server in self._servers:
            await server.wait_closed()
        self.fetch.close()
        for partition in range(self.offsets_log.partitions):
            self.groups.unload(partition)
        if self.cluster is not None:
            await self.cluster.stop()
        await asyncio.gather(self.store.stop(), self.http.stop())
        await self.metadata_store.close()
        self._lock.close()

    # Connections

    def _accept(self, dispatcher: Dispatcher) -> Connection:
        return Connection(
            dispatcher,
            self.buffers,
            self.settings.max_request,
            self.connections.add,
            self.connections.discard,
        )

    # Background

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget_topic(self, name: str) -> None:
        self._spawn(self.groups.forget_topic(name))

    async def _expire_groups(self) -> None:
        while True:
            await asyncio.sleep(_GROUP_EXPIRY_SECONDS)
            try:
                await self.groups.expire(time.time_ns() // 1_000_000)
            except Exception:
                log.exception("expiring group offsets failed")

    def _public_settings(self) -> dict[str, str]:
        found = {
            name.replace("_", "."): str(value)
            for name, value in self.settings.model_dump().items()
            if value is not None and not isinstance(value, dict)
        }
        if "rack" in found:
            found["broker.rack"] = found["rack"]  # tools that place replicas ask for it by Kafka's name
        return found


def _raise_descriptor_limit() -> None:
    """Each mapped segment and each connection takes a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _bind(address: Address) -> socket.socket:
    """Take the port before anything else: a taken one is found out before the log is touched."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"can't listen on {address}: {error.strerror}") from None
    return bound


def _lock_directory(directory: Path) -> IO[bytes]:
    """Two brokers on one directory would destroy it; the kernel lets go when the process ends."""
    file = (directory / "lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise AlreadyRunning(f"another broker is using {directory.resolve()}") from None
    return file
