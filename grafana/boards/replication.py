"""Replication: in-sync sets, lag of backups, elections."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from boards.parts import (
    BYTES_PER_SECOND,
    NUMBER,
    SECONDS,
    Levels,
    Query,
    board,
    figure,
    graph,
    or_zero,
    rate,
    summed,
    where,
)

HERE = where()
TOPIC = where(topic=True)
FAILOVERS = where('cause="failover"')
ZERO = Levels(1, 1)


def replication() -> Dashboard:
    return board(
        "replication",
        "Replication",
        "Who leads what, who has it too, how far behind, and who was elected why.",
        {
            "Health": [
                figure(
                    "Brokers alive",
                    "Brokers with a lease in etcd, as the one sees it that sees fewest.",
                    NUMBER,
                    Query(f"min(penstock_brokers_alive{HERE})"),
                    Levels(1, 1, falling=True),
                ),
                figure(
                    "etcd reachable",
                    "1 while every broker reaches it, or needs none.",
                    NUMBER,
                    Query(f"min(penstock_metadata_reachable{HERE})"),
                    Levels(1, 1, falling=True),
                ),
                figure(
                    "Lacking replicas",
                    "Partitions with fewer replicas in sync than they should have.",
                    NUMBER,
                    Query(f"sum(penstock_under_replicated_partitions{HERE})"),
                    ZERO,
                ),
                figure(
                    "Refusing acks=all",
                    "Partitions with fewer replicas in sync than min.insync.replicas.",
                    NUMBER,
                    Query(f"sum(penstock_below_min_in_sync_partitions{HERE})"),
                    ZERO,
                ),
                figure(
                    "Leaderless",
                    "Partitions that nobody leads.",
                    NUMBER,
                    Query(f"max(penstock_leaderless_partitions{HERE})"),
                    ZERO,
                ),
                figure(
                    "Failovers, 1 h",
                    "Partitions taken over from a leader that was lost.",
                    NUMBER,
                    Query(f"sum(increase(penstock_elections_total{FAILOVERS}[1h]))"),
                    ZERO,
                ),
            ],
            "In-sync sets": [
                graph(
                    "Partitions by role",
                    "What each broker leads, and what it keeps for others.",
                    NUMBER,
                    Query(summed(f"penstock_partitions{HERE}", "instance, role"), "{{instance}} {{role}}"),
                ),
                graph(
                    "Sizes of in-sync sets",
                    "Partitions by the number of replicas that have all that is committed.",
                    NUMBER,
                    Query(summed(f"penstock_in_sync_sets{TOPIC}", "size"), "{{size}} in sync"),
                    stacked=True,
                ),
                graph(
                    "Changes of in-sync sets",
                    "Replicas that fell out of sync or came back, in five minutes.",
                    NUMBER,
                    Query(
                        summed(f"increase(penstock_in_sync_changes_total{HERE}[5m])", "change"), "{{change}}"
                    ),
                    levels=Levels(1, 100),
                ),
            ],
            "Backups": [
                graph(
                    "Lag of backups",
                    "Records that a backup has not acknowledged, of all partitions that a leader sends it.",
                    NUMBER,
                    Query(
                        or_zero(summed(f"penstock_backup_lag_records{HERE}", "instance, backup")),
                        "{{instance}} to {{backup}}",
                    ),
                    levels=Levels(10_000, 1_000_000),
                ),
                graph(
                    "Backups that stand still",
                    "Seconds since a backup acknowledged something of what it lacks, the worst partition. "
                    "After 2 s it leaves the in-sync set.",
                    SECONDS,
                    Query(
                        or_zero(f"max by (instance, backup) (penstock_backup_stalled_seconds{HERE})"),
                        "{{instance}} to {{backup}}",
                    ),
                    levels=Levels(0.5, 2),
                ),
                graph(
                    "Partitions on their way",
                    "Streaming: the backup gets appends at once. Catching up: it is sent the past. "
                    "Detached: it gets nothing.",
                    NUMBER,
                    Query(
                        or_zero(summed(f"penstock_backup_partitions{HERE}", "backup, state")),
                        "{{backup}} {{state}}",
                    ),
                ),
                graph(
                    "Replicated",
                    "Bytes that each broker took over from leaders elsewhere.",
                    BYTES_PER_SECOND,
                    Query(rate("penstock_topic_bytes_replicated_total", TOPIC, "instance"), "{{instance}}"),
                ),
            ],
            "Elections": [
                graph(
                    "Elections by cause",
                    "Partitions that got a leader, in five minutes. failover: the one before was lost; "
                    "handover: it stopped cleanly; home: back to the preferred one; "
                    "restart: the same one again.",
                    NUMBER,
                    Query(summed(f"increase(penstock_elections_total{HERE}[5m])", "cause"), "{{cause}}"),
                ),
                graph(
                    "Elections by broker",
                    "The same, by who began to lead.",
                    NUMBER,
                    Query(
                        summed(f"increase(penstock_elections_total{HERE}[5m])", "instance"), "{{instance}}"
                    ),
                ),
            ],
        },
    )
