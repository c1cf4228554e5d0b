"""Who is there and who leads what: ApiVersions, Metadata, FindCoordinator, DescribeCluster."""

from __future__ import annotations

from typing import Any

from penstock.broker.context import Address, BrokerContext
from penstock.broker.topics import TopicKeeper
from penstock.cluster.membership import BrokerInfo
from penstock.cluster.topics import Topic, check_topic_name
from penstock.wire.apis import SUPPORTED
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import Tree

_GROUP = 0
_TRANSACTION = 1
_BY_ID = 12
"""Metadata version from which a topic may be asked for by its id alone."""


def api_versions(error: ErrorCode = ErrorCode.none) -> Tree:
    return {
        "error_code": error,
        "api_keys": [
            {"api_key": key.value, "min_version": versions.low, "max_version": versions.high}
            for key, versions in SUPPORTED.items()
        ],
        "throttle_time": 0,
    }


class MetadataHandlers:
    def __init__(self, context: BrokerContext, keeper: TopicKeeper, external: Address | None = None) -> None:
        """`external`: where clients of the second door find this broker, and what they are told of all."""
        self._context = context
        self._keeper = keeper
        self._external = external

    async def metadata(self, request: Any, version: int) -> Tree:
        wanted = request.topics
        if wanted is None or (version == 0 and not wanted):
            topics = [self._describe(served.topic) for served in self._context.catalog]
        else:
            create = self._context.defaults.auto_create and getattr(
                request, "allow_auto_topic_creation", True
            )
            topics = [await self._find(entry, create, version) for entry in wanted]
        context = self._context
        return {
            "brokers": self._brokers(),
            "cluster_id": context.registry.cluster_id,
            "controller_id": self._controller(),
            "topics": topics,
        }

    async def _find(self, entry: Any, create: bool, version: int) -> Tree:
        topic_id = getattr(entry, "topic_id", None)
        if entry.name is None and version < _BY_ID:
            return {"error_code": ErrorCode.invalid_request, "name": ""}
        if entry.name is None:
            found = self._context.catalog.by_id.get(topic_id.bytes) if topic_id else None
            if found is None:
                return {"error_code": ErrorCode.unknown_topic_id, "name": None, "topic_id": topic_id}
            return self._describe(found.topic)
        name = str(entry.name)
        try:
            check_topic_name(name)
            # The catalog, not the registry: a topic is told of once it can be used.
            served = self._context.catalog.by_name.get(name)
            if served is not None:
                return self._describe(served.topic)
            if not create:
                raise KafkaError(ErrorCode.unknown_topic_or_partition)
            return self._describe(await self._keeper.ensure(name))
        except KafkaError as error:
            return {"error_code": error.code, "name": name}

    def _describe(self, topic: Topic) -> Tree:
        served = self._context.catalog.by_name.get(topic.name)
        own = self._context.broker_id
        cluster = self._context.cluster
        partitions = []
        for index, info in enumerate(topic.partitions):
            here = served.replicas.get(index) if served is not None and info.leader == own else None
            damaged = here is not None and here.damage is not None
            doubted = cluster is not None and cluster.replicator.doubts(
                (topic.topic_id.bytes, index), info.leader
            )
            vacant = damaged or doubted or info.leader < 0
            partitions.append(
                {
                    "error_code": ErrorCode.leader_not_available if vacant else ErrorCode.none,
                    "partition_index": index,
                    "leader_id": -1 if vacant else info.leader,
                    "leader_epoch": info.leader_epoch,
                    "replica_nodes": info.replicas,
                    "isr_nodes": info.in_sync,
                    "offline_replicas": info.replicas if damaged else (),
                }
            )
        return {
            "error_code": ErrorCode.none,
            "name": topic.name,
            "topic_id": topic.topic_id,
            "is_internal": topic.is_internal,
            "partitions": partitions,
        }

    def _brokers(self) -> list[Tree]:
        cluster = self._context.cluster
        if cluster is None:
            return [self._broker()]
        return [self._other(info) for info in cluster.brokers().values()]

    def _controller(self) -> int:
        cluster = self._context.cluster
        return self._context.broker_id if cluster is None else cluster.controller

    def _coordinator(self, group: str, error: ErrorCode, message: str | None) -> Tree:
        cluster = self._context.cluster
        broker = self._broker()
        if cluster is not None and error is ErrorCode.none:
            found = cluster.coordinator_of(group)
            if found is None:
                error, message = ErrorCode.coordinator_not_available, "its partition has no leader yet"
                broker = {**broker, "node_id": -1, "host": "", "port": -1}
            else:
                broker = self._other(found)
        return {**broker, "error_code": error, "error_message": message}

    def _broker(self) -> Tree:
        address = self._external or self._context.address()
        return _broker(self._context.broker_id, address, self._context.rack)

    def _other(self, info: BrokerInfo) -> Tree:
        inside = Address(info.host, info.port)
        address = Address.parse(info.external) if self._external and info.external else inside
        return _broker(info.broker_id, address, info.rack)

    def find_coordinator(self, request: Any, version: int) -> Tree:
        kind = getattr(request, "key_type", _GROUP)
        # Errors that a client reports at once: one that it retries would look like a hang.
        error, message = ErrorCode.none, None
        if kind == _TRANSACTION:
            error = ErrorCode.transactional_id_authorization_failed
            message = "transactions are not supported yet"
        elif kind != _GROUP:
            error, message = ErrorCode.invalid_request, f"no coordinator for keys of type {kind}"
        answer = self._coordinator(getattr(request, "key", None) or "", error, message)
        keys = getattr(request, "coordinator_keys", ())
        return {
            **answer,
            "coordinators": [{**self._coordinator(key, error, message), "key": key} for key in keys],
        }

    def describe_cluster(self, request: Any, version: int) -> Tree:
        return {
            "error_code": ErrorCode.none,
            "cluster_id": self._context.registry.cluster_id,
            "controller_id": self._controller(),
            "brokers": self._brokers(),
        }


def _broker(broker_id: int, address: Address, rack: str | None) -> Tree:
    return {
        "node_id": broker_id,
        "broker_id": broker_id,
        "host": address.host,
        "port": address.port,
        "rack": rack,
    }
