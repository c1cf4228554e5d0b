"""Push vs pull: the paper's figures, live."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from boards.parts import (
    BYTES_PER_SECOND,
    NUMBER,
    RECORDS_PER_SECOND,
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

TOPIC = where(topic=True)
MOST = where('quantile!="1"', query=True)
BROKER_CPU = rate("process_cpu_seconds_total", where('job="penstock-broker"'))
PUSHED_BYTES = rate("penstock_topic_bytes_out_total", where('way="push"', topic=True))
GIGABYTE = "1e9"
FULL_FETCH = "1048576"


def push_pull() -> Dashboard:
    moved = (
        f"({rate('penstock_topic_bytes_in_total', TOPIC)} + {rate('penstock_topic_bytes_out_total', TOPIC)})"
    )
    return board(
        "push-pull",
        "Push vs pull",
        "What the paper plots, live: throughput of both ends, and what reading costs the broker.",
        {
            "Throughput": [
                graph(
                    "Producers",
                    "Records acknowledged to penstock load; other producers show in the topic's records in.",
                    RECORDS_PER_SECOND,
                    Query(
                        rate("penstock_producer_records_total", TOPIC, "topic"), "{{topic}} by penstock load"
                    ),
                    Query(rate("penstock_topic_records_in_total", TOPIC, "topic"), "{{topic}} by anybody"),
                ),
                graph(
                    "Consumers, records",
                    "Records read, by way. Push is read in place from shared memory, pull by Fetch requests.",
                    RECORDS_PER_SECOND,
                    Query(rate("penstock_topic_records_out_total", TOPIC, "way"), "{{way}}"),
                ),
                graph(
                    "Consumers, bytes",
                    "The same in bytes of record batches.",
                    BYTES_PER_SECOND,
                    Query(rate("penstock_topic_bytes_out_total", TOPIC, "way"), "{{way}}"),
                ),
            ],
            "Cost": [
                graph(
                    "Brokers' CPU per GB",
                    "Seconds of all brokers for a GB in or out. Falls as push takes over from pull.",
                    SECONDS,
                    Query(f"{BROKER_CPU} / (({moved} > 0) / {GIGABYTE})", "CPU s per GB"),
                    levels=Levels(5, 20),
                ),
                graph(
                    "Brokers' CPU",
                    "Cores in use by all brokers.",
                    NUMBER,
                    Query(BROKER_CPU, "cores"),
                ),
                graph(
                    "Fetch requests",
                    "What pull costs, and what push saves at the least: pushed bytes in full fetches of "
                    "1 MiB, the most that Kafka's default takes of a partition at once.",
                    REQUESTS_PER_SECOND,
                    Query(or_zero(rate("penstock_request_seconds_count", where('api="Fetch"'))), "answered"),
                    Query(f"{PUSHED_BYTES} / {FULL_FETCH}", "saved, at the least"),
                ),
            ],
            "Latency": [
                graph(
                    "Producers' latency",
                    "From sending a request to its acknowledgement. Pulling readers compete with producers "
                    "for the broker, pushed ones don't.",
                    SECONDS,
                    Query(quantile(0.5, "penstock_producer_request_seconds", TOPIC), "p50"),
                    Query(quantile(0.99, "penstock_producer_request_seconds", TOPIC), "p99"),
                    levels=Levels(0.1, 1),
                ),
                graph(
                    "End-to-end latency",
                    "From a record's timestamp to the end of its micro-batch, or to its task in real time.",
                    SECONDS,
                    Query(
                        f"max by (query, quantile) (penstock_query_latency_seconds{MOST})",
                        "{{query}} p{{quantile}}",
                    ),
                    levels=Levels(2, 10),
                ),
            ],
            "Who reads how": [
                graph(
                    "Queries by way",
                    "Records per second that each query read, by way.",
                    RECORDS_PER_SECOND,
                    Query(
                        rate("penstock_query_read_records_total", where(query=True), "query, way"),
                        "{{query}} {{way}}",
                    ),
                ),
                graph(
                    "Change-overs",
                    "Times that a reader of a query went from push to pull or back, in five minutes. "
                    "After a broker's death two are to be expected for each partition.",
                    NUMBER,
                    Query(
                        summed(
                            f"increase(penstock_query_change_overs_total{where(query=True)}[5m])", "query"
                        ),
                        "{{query}}",
                    ),
                    levels=Levels(1, 100),
                ),
                graph(
                    "Partitions being read",
                    "By readers with a cursor in a broker's shared memory, by the way they read now. "
                    "Those of micro-batches come and go.",
                    NUMBER,
                    Query(or_zero(summed(f"penstock_reader_partitions{TOPIC}", "mode")), "{{mode}}"),
                ),
            ],
        },
    )
