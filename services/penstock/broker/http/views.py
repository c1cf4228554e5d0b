"""The broker as it is now, put into the models of the JSON views.

Everything runs on the event loop between two requests of the data path, so nothing here waits, and the
work is proportional to what is asked for.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.broker.catalog import Catalog, ServedTopic
from penstock.broker.groups.model import GroupView
from penstock.broker.http.assignment import read_assignment
from penstock.broker.http.models import (
    BrokerStatus,
    ConnectionStatus,
    CursorStatus,
    DiskStatus,
    GroupDetail,
    GroupOffset,
    GroupSummary,
    MemberStatus,
    MemoryStatus,
    PartitionStatus,
    ReaderStatus,
    TopicDetail,
    TopicSummary,
)
from penstock.broker.http.totals import Totals, total
from penstock.log.partition import PartitionLog
from penstock.shm.cursors import ReaderSlot

if TYPE_CHECKING:
    from penstock.broker.server import Broker


def broker_status(broker: Broker) -> BrokerStatus:
    logs = total(broker.store.logs.values())
    reason = broker.unready_reason()
    return BrokerStatus(
        broker_id=broker.settings.broker_id,
        cluster_id=broker.registry.cluster_id,
        version=__version__,
        pid=os.getpid(),
        ready=reason is None,
        reason=reason,
        kafka=str(broker.listen_address),
        http=broker.http.url,
        started_at=broker.started_at,
        uptime_seconds=time.time() - broker.started_at,
        incarnation=broker.store.incarnation,
        topics=len(broker.catalog.by_name),
        partitions=logs.partitions,
        offline_partitions=logs.offline,
        connections=len(broker.connections),
        waiting_fetches=broker.fetch.waiting,
        groups=sum(1 for _ in broker.groups.groups()),
        readers=len(broker.store.readers),
        records_in=logs.records_in,
        bytes_in=logs.bytes_in,
        records_out=logs.records_out,
        bytes_out=logs.bytes_out,
        memory=_memory(broker),
        disk=_disk(broker, logs),
    )


def _memory(broker: Broker) -> MemoryStatus:
    store = broker.store
    use = store.pool.use
    return MemoryStatus(
        directory=str(store.memory_directory),
        budget=use.budget,
        in_use=use.total - use.free,
        free=use.free,
        retiring=use.retiring,
        detached=use.detached,
        evictions=store.evictions,
        taken_from_readers=store.pool.taken_from_readers,
    )


def _disk(broker: Broker, logs: Totals) -> DiskStatus:
    store = broker.store
    return DiskStatus(
        directory=str(store.disk_directory),
        log_bytes=logs.log_bytes,
        free=shutil.disk_usage(store.disk_directory).free,
        unflushed=logs.unflushed,
        write_behind_lag_seconds=store.write_behind.lag,
        failure=store.write_behind.failure,
    )


def topic_summaries(catalog: Catalog) -> list[TopicSummary]:
    return [_summary(served) for served in sorted(catalog, key=lambda served: served.topic.name)]


def _summary(served: ServedTopic) -> TopicSummary:
    logs = total(served.logs)
    return TopicSummary(
        topic=served.topic.name,
        topic_id=str(served.topic.topic_id),
        internal=served.topic.is_internal,
        partition_count=logs.partitions,
        offline_partitions=logs.offline,
        records_in=logs.records_in,
        bytes_in=logs.bytes_in,
        records_out=logs.records_out,
        bytes_out=logs.bytes_out,
        log_bytes=logs.log_bytes,
        hot_bytes=logs.hot_bytes,
        unflushed=logs.unflushed,
    )


def topic_detail(served: ServedTopic) -> TopicDetail:
    return TopicDetail(
        **_summary(served).model_dump(),
        configs=dict(served.topic.configs),
        partitions=[_partition(served, log) for log in served.logs],
    )


def _partition(served: ServedTopic, log: PartitionLog) -> PartitionStatus:
    placed = served.topic.partitions[log.partition]
    return PartitionStatus(
        partition=log.partition,
        leader=placed.leader,
        leader_epoch=log.leader_epoch,
        replicas=list(placed.replicas),
        in_sync=list(placed.in_sync),
        log_start=log.log_start,
        high_watermark=log.high_watermark,
        log_end=log.log_end,
        segments=len(log.segments),
        log_bytes=log.size,
        hot_bytes=log.hot_size,
        unflushed=log.unflushed,
        damage=log.damage,
    )


def group_summaries(groups: Iterable[GroupView], catalog: Catalog) -> list[GroupSummary]:
    ordered = sorted(groups, key=lambda group: group.group_id)
    return [_group_summary(group, _offsets(group, catalog)) for group in ordered]


def group_detail(group: GroupView, catalog: Catalog) -> GroupDetail:
    offsets = _offsets(group, catalog)
    return GroupDetail(
        **_group_summary(group, offsets).model_dump(),
        generation=group.generation,
        members=[
            MemberStatus(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.host,
                assignment=read_assignment(member.assignment),
            )
            for member in group.members
        ],
        offsets=offsets,
    )


def _group_summary(group: GroupView, offsets: list[GroupOffset]) -> GroupSummary:
    lags = [offset.lag for offset in offsets if offset.lag is not None]
    return GroupSummary(
        group=group.group_id,
        state=group.state,
        protocol=group.protocol,
        member_count=len(group.members),
        lag=sum(lags),
        max_lag=max(lags, default=0),
    )


def _offsets(group: GroupView, catalog: Catalog) -> list[GroupOffset]:
    offsets = []
    for (topic, partition), committed in sorted(group.offsets.items()):
        served = catalog.by_name.get(topic)
        replica = served.replicas.get(partition) if served is not None else None
        watermark = replica.high_watermark if replica is not None else None
        offsets.append(
            GroupOffset(
                topic=topic,
                partition=partition,
                committed=committed.offset,
                high_watermark=watermark,
                lag=None if watermark is None else max(0, watermark - committed.offset),
            )
        )
    return offsets


def connections(broker: Broker) -> list[ConnectionStatus]:
    """Those that have most waiting come first: a client that doesn't read shows at the top."""
    return [
        ConnectionStatus(
            peer=connection.peer,
            client_id=connection.client_id,
            software=connection.software,
            since=connection.since,
            requests=connection.requests,
            bytes_in=connection.bytes_in,
            bytes_out=connection.bytes_out,
            in_flight=connection.in_flight,
        )
        for connection in sorted(broker.connections, key=lambda each: (-each.in_flight, each.peer))
    ]


def readers(slots: Iterable[ReaderSlot], catalog: Catalog) -> list[ReaderStatus]:
    sessions: dict[tuple[str, str], list[CursorStatus]] = {}
    for slot in slots:
        sessions.setdefault((slot.session, slot.label), []).append(_cursor(slot, catalog))
    found = []
    for (session, label), cursors in sessions.items():
        lags = [cursor.lag for cursor in cursors if cursor.lag is not None]
        found.append(
            ReaderStatus(
                session=session, label=label, lag=sum(lags), max_lag=max(lags, default=0), cursors=cursors
            )
        )
    return sorted(found, key=lambda reader: -reader.lag)


def _cursor(slot: ReaderSlot, catalog: Catalog) -> CursorStatus:
    served = catalog.by_id.get(slot.topic_id)
    watermark = None
    if served is not None and slot.partition in served.replicas:
        watermark = served.replicas[slot.partition].high_watermark
    return CursorStatus(
        topic=None if served is None else served.topic.name,
        partition=slot.partition,
        mode=slot.state.name.lower(),
        pinned_segment=None if slot.pinned < 0 else slot.pinned,
        finished=slot.finished,
        high_watermark=watermark,
        lag=None if watermark is None else max(0, watermark - slot.finished),
        push_records=slot.push_records,
        push_bytes=slot.push_bytes,
        pull_records=slot.pull_records,
        pull_bytes=slot.pull_bytes,
    )
