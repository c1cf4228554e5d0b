"""The cluster as one broker knows it: everybody's partitions by the directory, lags of what it leads itself.

`whole` asks every broker and puts the answers together.
"""

from __future__ import annotations

import time

from penstock.broker.cluster import ClusterNode
from penstock.broker.http.models import (
    BackupStatus,
    ClusterBroker,
    ClusterStatus,
    ElectionStatus,
    OwnReplica,
    ReplicatedPartition,
)
from penstock.cluster.membership import BrokerInfo
from penstock.cluster.partitions import PartitionKey
from penstock.replication.leadership import Backup


def cluster_status(node: ClusterNode) -> ClusterStatus:
    directory, replicator = node.directory, node.replicator
    partitions = [
        ReplicatedPartition(
            topic=topic.name,
            partition=index,
            leader=placed.leader,
            epoch=placed.leader_epoch,
            replicas=list(placed.replicas),
            in_sync=list(placed.in_sync),
            wanted=topic.replication,
            reason=state.reason if (state := directory.states.get((topic.topic_id.bytes, index))) else "",
            backups=_backups(node, (topic.topic_id.bytes, index)),
            own=_own(node, (topic.topic_id.bytes, index)),
        )
        for topic in sorted(directory.by_name.values(), key=lambda topic: topic.name)
        for index, placed in enumerate(topic.partitions)
    ]
    since = time.time() - replicator.now()
    return ClusterStatus(
        cluster_id=directory.cluster_id,
        told_by=replicator.broker_id,
        etcd_reachable=node.metadata.reachable,
        brokers=[
            _broker(info, partitions, alive=number in directory.brokers, drained=number in directory.drained)
            for number, info in sorted(directory.addresses.items())
        ],
        partitions=partitions,
        elections=[
            ElectionStatus(
                at=since + election.at,
                partition=election.topic,
                epoch=election.epoch,
                leader=replicator.broker_id,
                reason=election.reason,
            )
            for election in reversed(replicator.elections.recent)
        ],
    )


def _broker(
    info: BrokerInfo, partitions: list[ReplicatedPartition], *, alive: bool, drained: bool
) -> ClusterBroker:
    return ClusterBroker(
        broker_id=info.broker_id,
        kafka=f"{info.host}:{info.port}",
        replication=f"{info.replication_host}:{info.replication_port}",
        http=info.http_address,
        rack=info.rack,
        alive=alive,
        drained=drained,
        leads=sum(p.leader == info.broker_id for p in partitions),
        replicas=sum(info.broker_id in p.replicas for p in partitions),
    )


def _backups(node: ClusterNode, key: PartitionKey) -> list[BackupStatus] | None:
    replica = node.replicator.replicas.get(key)
    led = replica.leadership if replica is not None else None
    if led is None:
        return None
    end = led.log.log_end
    return [
        BackupStatus(broker_id=each.broker, state=_state(each), lag=end - max(0, each.acked))
        for each in led.backups.values()
    ]


def _own(node: ClusterNode, key: PartitionKey) -> OwnReplica | None:
    replica = node.replicator.replicas.get(key)
    if replica is None:
        return None
    log = replica.log
    return OwnReplica(
        storage=log.storage_id,
        last_epoch=log.epochs[-1].epoch if log.epochs else -1,
        log_start=log.log_start,
        log_end=log.log_end,
        high_watermark=log.high_watermark,
    )


def _state(backup: Backup) -> str:
    if not backup.attached:
        return "detached"
    return "streaming" if backup.streaming else "catching up"
