"""What this broker leads and follows, how far its backups are, and who was elected why.

The names are there on a single node too, where all is well by definition: dashboards and alerts need not
know the difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.cluster.partitions import NOBODY
from penstock.replication.elections import Cause
from penstock.replication.leadership import Backup

if TYPE_CHECKING:
    from penstock.broker.server import Broker
    from penstock.replication.leadership import Leadership
    from penstock.replication.replicator import Replicator


@dataclass(slots=True)
class _Behind:
    """All that one backup gets from this broker."""

    records: int = 0
    most: int = 0
    seconds: float = 0.0
    partitions: dict[str, int] = field(
        default_factory=lambda: {"streaming": 0, "catching-up": 0, "detached": 0}
    )

    def add(self, backup: Backup, log_end: int, now: float) -> None:
        state = "streaming" if backup.streaming else "catching-up" if backup.attached else "detached"
        self.partitions[state] += 1
        records = log_end - max(0, backup.acked)
        if records > 0:
            self.records += records
            self.most = max(self.most, records)
            self.seconds = max(self.seconds, now - backup.progress_at)


class _Survey:
    """One pass over the replicas: 1,000 partitions are looked at once."""

    def __init__(self) -> None:
        self.leading = self.following = self.under_replicated = self.short = 0
        self.in_sync: dict[tuple[str, int], int] = defaultdict(int)
        self.backups: dict[int, _Behind] = defaultdict(_Behind)

    def of_cluster(self, replicator: Replicator) -> _Survey:
        now = replicator.now()
        topics = replicator.directory.by_id
        for replica in replicator.replicas.values():
            led = replica.leadership
            if led is None:
                self.following += 1
            else:
                topic = topics.get(led.key[0])  # none: it is being deleted
                self._led(led, topic.replication if topic is not None else 0, now)
        return self

    def _led(self, led: Leadership, wanted: int, now: float) -> None:
        size = len(led.known)
        self.leading += 1
        self.in_sync[led.log.topic, size] += 1
        in_sync = {member.broker for member in led.known}
        self.under_replicated += len(led.replicas) < wanted or not in_sync.issuperset(led.replicas)
        self.short += led.log.short_of_replicas
        for backup in led.backups.values():
            self.backups[backup.broker].add(backup, led.log.log_end, now)

    def of_single_node(self, broker: Broker) -> _Survey:
        for served in broker.catalog:
            self.leading += len(served.logs)
            self.in_sync[served.topic.name, 1] = len(served.logs)
        return self


def replication(broker: Broker) -> Iterator[Metric]:
    node = broker.cluster
    replicator = node.replicator if node is not None else None
    survey = _Survey().of_single_node(broker) if replicator is None else _Survey().of_cluster(replicator)
    reachable = node is None or node.metadata.reachable
    yield GaugeMetricFamily(
        "penstock_metadata_reachable", "1 while etcd answers, or where none is needed", int(reachable)
    )
    states = node.directory.states.values() if node is not None else ()
    yield GaugeMetricFamily(
        "penstock_leaderless_partitions",
        "Partitions of the cluster that nobody leads",
        sum(state.leader == NOBODY for state in states),
    )
    alive = len(node.directory.brokers) if node is not None else 1
    yield GaugeMetricFamily("penstock_brokers_alive", "Brokers with a lease, as this one sees it", alive)
    yield from _roles(survey)
    yield from _backups(survey)
    counts = replicator.elections.counts if replicator is not None else dict.fromkeys(Cause, 0)
    elections = CounterMetricFamily(
        "penstock_elections", "Times this broker began to lead a partition", labels=["cause"]
    )
    for cause, count in counts.items():
        elections.add_metric([cause], count)
    yield elections
    changes = CounterMetricFamily(
        "penstock_in_sync_changes", "Times an in-sync set of ours shrank or grew", labels=["change"]
    )
    changes.add_metric(["shrink"], replicator.shrinks if replicator is not None else 0)
    changes.add_metric(["grow"], replicator.growths if replicator is not None else 0)
    yield changes


def _roles(survey: _Survey) -> Iterator[Metric]:
    partitions = GaugeMetricFamily("penstock_partitions", "Partitions here, by role", labels=["role"])
    partitions.add_metric(["leader"], survey.leading)
    partitions.add_metric(["backup"], survey.following)
    yield partitions
    yield GaugeMetricFamily(
        "penstock_under_replicated_partitions",
        "Led partitions with fewer replicas, or fewer of them in sync, than they should have",
        survey.under_replicated,
    )
    yield GaugeMetricFamily(
        "penstock_below_min_in_sync_partitions",
        "Led partitions that refuse acks=all: fewer in sync than min.insync.replicas",
        survey.short,
    )
    in_sync = GaugeMetricFamily(
        "penstock_in_sync_sets", "Led partitions by size of their in-sync set", labels=["topic", "size"]
    )
    for (topic, size), count in survey.in_sync.items():
        in_sync.add_metric([topic, str(size)], count)
    yield in_sync


def _backups(survey: _Survey) -> Iterator[Metric]:
    labels = ["backup"]
    records = GaugeMetricFamily(
        "penstock_backup_lag_records", "Records that a backup has not acknowledged", labels=labels
    )
    most = GaugeMetricFamily(
        "penstock_backup_max_lag_records", "The same of its worst partition", labels=labels
    )
    seconds = GaugeMetricFamily(
        "penstock_backup_stalled_seconds", "Since it last acknowledged what it lacks, at worst", labels=labels
    )
    partitions = GaugeMetricFamily(
        "penstock_backup_partitions", "Partitions sent to a backup, by state", labels=[*labels, "state"]
    )
    for broker, behind in survey.backups.items():
        name = str(broker)
        records.add_metric([name], behind.records)
        most.add_metric([name], behind.most)
        seconds.add_metric([name], behind.seconds)
        for state, count in behind.partitions.items():
            partitions.add_metric([name, state], count)
    yield from (records, most, seconds, partitions)
