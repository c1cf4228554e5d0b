"""Overview: is it well, how much goes in and out, how late, how far behind."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from boards.parts import (
    BYTES_PER_SECOND,
    NUMBER,
    RECORDS_PER_SECOND,
    SECONDS,
    SHARE,
    Levels,
    Query,
    board,
    figure,
    graph,
    or_zero,
    quantile,
    rate,
    where,
)

BROKERS = where('job="penstock-broker"')
TOPIC = where(topic=True)
PUSHED = where('way="push"', topic=True)
PULLED = where('way="pull"', topic=True)
MEDIAN = where('quantile="0.5"', query=True)
P99 = where('quantile="0.99"', query=True)
WORST = where('statistic="max"', query=True)
ZERO = Levels(1, 1)


def overview() -> Dashboard:
    return board(
        "overview",
        "Overview",
        "Health at a glance, and what goes through the cluster.",
        {
            "Health": [
                figure(
                    "Brokers up",
                    "Brokers that answer Prometheus.",
                    NUMBER,
                    Query(f"sum(up{BROKERS})"),
                    Levels(1, 1, falling=True),
                ),
                figure(
                    "Serving",
                    "Share of the brokers that are ready: started, and their disk takes the log.",
                    SHARE,
                    Query(f"avg(penstock_ready{where()})"),
                    Levels(1, 0.5, falling=True),
                ),
                figure(
                    "Lacking replicas",
                    "Partitions with fewer replicas in sync than they should have.",
                    NUMBER,
                    Query(f"sum(penstock_under_replicated_partitions{where()})"),
                    ZERO,
                ),
                figure(
                    "Leaderless",
                    "Partitions that nobody leads: they can be neither written nor read.",
                    NUMBER,
                    Query(f"max(penstock_leaderless_partitions{where()})"),
                    ZERO,
                ),
                figure(
                    "Read by push",
                    "Share of the records read that came by shared memory and not by a Fetch request.",
                    SHARE,
                    Query(
                        or_zero(
                            f"{rate('penstock_topic_records_out_total', PUSHED)}"
                            f" / ({rate('penstock_topic_records_out_total', TOPIC)} > 0)"
                        )
                    ),
                ),
                figure(
                    "Alerts",
                    "Alerts that fire now. Each links to its section of docs/operations.md.",
                    NUMBER,
                    Query(or_zero('count(ALERTS{alertstate="firing", alertname=~"Penstock.*"})')),
                    ZERO,
                ),
            ],
            "Flow": [
                graph(
                    "Records in and out",
                    "Produced, and read by push (shared memory) and by pull (Fetch). "
                    "Several readers of a topic count each.",
                    RECORDS_PER_SECOND,
                    Query(rate("penstock_topic_records_in_total", TOPIC), "in"),
                    Query(rate("penstock_topic_records_out_total", PUSHED), "out by push"),
                    Query(rate("penstock_topic_records_out_total", PULLED), "out by pull"),
                    span=12,
                ),
                graph(
                    "Bytes in and out",
                    "The same in bytes of record batches, compressed as the producer sent them.",
                    BYTES_PER_SECOND,
                    Query(rate("penstock_topic_bytes_in_total", TOPIC), "in"),
                    Query(rate("penstock_topic_bytes_out_total", PUSHED), "out by push"),
                    Query(rate("penstock_topic_bytes_out_total", PULLED), "out by pull"),
                    span=12,
                ),
            ],
            "Latency and lag": [
                graph(
                    "End-to-end latency",
                    "From a record's timestamp to the end of its micro-batch, or to its task in real time; "
                    "of the last batch. Jobs measure it with --latency.",
                    SECONDS,
                    Query(
                        f"max by (query) (penstock_query_latency_seconds{MEDIAN})",
                        "{{query}} p50",
                    ),
                    Query(
                        f"max by (query) (penstock_query_latency_seconds{P99})",
                        "{{query}} p99",
                    ),
                    levels=Levels(2, 10),
                ),
                graph(
                    "Lag of queries and groups",
                    "Records of the worst partition that a query or consumer group has not read yet.",
                    NUMBER,
                    Query(
                        f"max by (query) (penstock_query_offsets_behind_latest{WORST})",
                        "{{query}}",
                    ),
                    Query(
                        or_zero(f"max by (group) (penstock_group_max_lag_records{TOPIC})"), "group {{group}}"
                    ),
                    levels=Levels(10_000, 1_000_000),
                ),
                graph(
                    "Producers' latency",
                    "From sending a request to its acknowledgement, by penstock load.",
                    SECONDS,
                    Query(_producers(0.5), "p50"),
                    Query(_producers(0.99), "p99"),
                    levels=Levels(0.1, 1),
                ),
            ],
            "Room": [
                graph(
                    "Brokers' CPU",
                    "Cores in use. A broker has one event loop: near 1 it is what limits the throughput.",
                    NUMBER,
                    Query(rate("process_cpu_seconds_total", BROKERS, "instance"), "{{instance}}"),
                    levels=Levels(0.8, 0.95),
                ),
                graph(
                    "Shared memory that can't be had back",
                    "Of the budget: segments being written, not on disk yet, or pinned by readers. "
                    "The rest is recycled when it is needed.",
                    SHARE,
                    Query(
                        f"penstock_memory_held_bytes{where()} / penstock_memory_budget_bytes{where()}",
                        "{{instance}}",
                    ),
                    levels=Levels(0.6, 0.8),
                ),
                graph(
                    "Disk in use",
                    "Of the file system that the logs are on.",
                    SHARE,
                    Query(
                        f"1 - penstock_disk_free_bytes{where()} / penstock_disk_size_bytes{where()}",
                        "{{instance}}",
                    ),
                    levels=Levels(0.8, 0.95),
                ),
            ],
        },
    )


def _producers(share: float) -> str:
    return quantile(share, "penstock_producer_request_seconds", where(topic=True))
