"""Broker: request latencies, memory and segments, write-behind, disk, clients."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from boards.parts import (
    BYTES,
    BYTES_PER_SECOND,
    NUMBER,
    REQUESTS_PER_SECOND,
    SECONDS,
    Levels,
    Query,
    board,
    graph,
    or_zero,
    quantile,
    rate,
    summed,
    where,
)

HERE = where()
PROCESS = where('job="penstock-broker"')
TOPIC = where(topic=True)


def broker() -> Dashboard:
    return board(
        "broker",
        "Broker",
        "One broker, or several beside each other: requests, memory, disk, and who is connected.",
        {
            "Requests": [
                graph(
                    "Latency, p50",
                    "From a request's last byte to its answer, by API. Fetch and JoinGroup wait on purpose.",
                    SECONDS,
                    Query(quantile(0.5, "penstock_request_seconds", HERE, "api"), "{{api}}"),
                ),
                graph(
                    "Latency, p99",
                    "The same, the slowest in a hundred.",
                    SECONDS,
                    Query(quantile(0.99, "penstock_request_seconds", HERE, "api"), "{{api}}"),
                    levels=Levels(1, 5),
                ),
                graph(
                    "Requests",
                    "Requests answered, by API.",
                    REQUESTS_PER_SECOND,
                    Query(rate("penstock_request_seconds_count", HERE, "api"), "{{api}}"),
                ),
                graph(
                    "Errors",
                    "Requests, or parts of them, refused, by Kafka's error code.",
                    REQUESTS_PER_SECOND,
                    Query(
                        or_zero(rate("penstock_request_errors_total", HERE, "api, code")), "{{api}} {{code}}"
                    ),
                    levels=Levels(1, 10),
                ),
                graph(
                    "Clients",
                    "Connections, fetches that wait for records, and processes that read shared memory.",
                    NUMBER,
                    Query(f"penstock_connections{HERE}", "{{instance}} connections"),
                    Query(f"penstock_fetches_waiting{HERE}", "{{instance}} fetches waiting"),
                    Query(f"penstock_readers{HERE}", "{{instance}} push readers"),
                ),
                graph(
                    "Lag of readers and groups",
                    "Records behind, all partitions: readers of shared memory while they read, and groups.",
                    NUMBER,
                    Query(
                        or_zero(summed(f"penstock_reader_lag_records{TOPIC}", "reader, mode")),
                        "{{reader}} {{mode}}",
                    ),
                    Query(or_zero(summed(f"penstock_group_lag_records{TOPIC}", "group")), "group {{group}}"),
                    levels=Levels(10_000, 1_000_000),
                ),
            ],
            "Memory": [
                graph(
                    "Shared memory",
                    "Budget; what the pool has made of it; what is free in it; what can't be had back now; "
                    "what is kept alive for readers only.",
                    BYTES,
                    Query(f"penstock_memory_budget_bytes{HERE}", "{{instance}} budget"),
                    Query(f"penstock_memory_pool_bytes{HERE}", "{{instance}} pool"),
                    Query(f"penstock_memory_free_bytes{HERE}", "{{instance}} free"),
                    Query(f"penstock_memory_held_bytes{HERE}", "{{instance}} held"),
                    Query(f"penstock_memory_detached_bytes{HERE}", "{{instance}} detached"),
                ),
                graph(
                    "Segments",
                    "In shared memory, and on disk only.",
                    NUMBER,
                    Query(
                        summed(f"penstock_topic_segments{TOPIC}", "instance, place"), "{{instance}} {{place}}"
                    ),
                ),
                graph(
                    "Evictions",
                    "Segments that left memory for newer ones, and those taken from readers that had them "
                    "pinned: these read again by pull.",
                    NUMBER,
                    Query(
                        rate("penstock_memory_evictions_total", HERE, "instance"), "{{instance}} evicted/s"
                    ),
                    Query(
                        rate("penstock_memory_taken_from_readers_total", HERE, "instance"),
                        "{{instance}} taken from readers/s",
                    ),
                ),
                graph(
                    "Memory by topic",
                    "Shared memory of each topic's segments.",
                    BYTES,
                    Query(summed(f"penstock_topic_memory_bytes{TOPIC}", "topic"), "{{topic}}"),
                    stacked=True,
                ),
                graph(
                    "Process",
                    "Resident memory, the shared log that it touched included, and requests being received.",
                    BYTES,
                    Query(f"process_resident_memory_bytes{PROCESS}", "{{instance}} resident"),
                    Query(f"penstock_request_buffer_bytes{HERE}", "{{instance}} requests"),
                ),
                graph(
                    "CPU",
                    "Cores in use. A broker has one event loop: near 1 it is what limits the throughput.",
                    NUMBER,
                    Query(rate("process_cpu_seconds_total", PROCESS, "instance"), "{{instance}}"),
                    levels=Levels(0.8, 0.95),
                ),
            ],
            "Disk": [
                graph(
                    "Write-behind lag",
                    "Age of the oldest bytes that are in shared memory only.",
                    SECONDS,
                    Query(f"penstock_write_behind_lag_seconds{HERE}", "{{instance}}"),
                    levels=Levels(0.5, 5),
                ),
                graph(
                    "Write-behind",
                    "Bytes copied to disk, and bytes that wait for it.",
                    BYTES,
                    Query(
                        rate("penstock_write_behind_bytes_total", HERE, "instance"), "{{instance}} per second"
                    ),
                    Query(f"penstock_write_behind_unflushed_bytes{HERE}", "{{instance}} waiting"),
                ),
                graph(
                    "Logs on disk",
                    "Size of all logs, and the room left where they are.",
                    BYTES,
                    Query(f"penstock_disk_log_bytes{HERE}", "{{instance}} logs"),
                    Query(f"penstock_disk_free_bytes{HERE}", "{{instance}} free"),
                ),
            ],
            "Topics": [
                graph(
                    "Bytes in",
                    "Produced, by topic.",
                    BYTES_PER_SECOND,
                    Query(rate("penstock_topic_bytes_in_total", TOPIC, "topic"), "{{topic}}"),
                ),
                graph(
                    "Bytes out",
                    "Read, by topic and way.",
                    BYTES_PER_SECOND,
                    Query(rate("penstock_topic_bytes_out_total", TOPIC, "topic, way"), "{{topic}} {{way}}"),
                ),
                graph(
                    "Damaged partitions",
                    "Partitions whose log can't be read; the others are served.",
                    NUMBER,
                    Query(summed(f"penstock_topic_partitions_offline{TOPIC}", "topic"), "{{topic}}"),
                    levels=Levels(1, 1),
                ),
            ],
        },
    )
