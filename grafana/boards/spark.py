"""Spark: batch durations, input rate, state, latency, and the executors' own figures."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from boards.parts import (
    BYTES,
    NUMBER,
    RECORDS_PER_SECOND,
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

QUERY = where(query=True)
WHOLE = where('phase="triggerExecution"', query=True)
PHASES = where('phase!="triggerExecution"', query=True)
WORST_AND_AVERAGE = where('statistic!="min"', query=True)
EXECUTORS = where()


def spark() -> Dashboard:
    return board(
        "spark",
        "Spark",
        "Streaming queries as they report after each batch (in real time: when a batch of minutes ends), "
        "and the executors that run them.",
        {
            "Queries": [
                figure(
                    "Running",
                    "Queries that run now.",
                    NUMBER,
                    Query(f"sum(penstock_query_running{QUERY})"),
                    Levels(1, 1, falling=True),
                ),
                figure(
                    "Rows",
                    "Rows that the queries processed in the last minute.",
                    NUMBER,
                    Query(f"sum(increase(penstock_query_rows_total{QUERY}[1m]))"),
                ),
                figure(
                    "Executors",
                    "Executors of the applications, the driver of a local one included.",
                    NUMBER,
                    Query(f"count(metrics_executor_totalCores{EXECUTORS})"),
                ),
                figure(
                    "Failed tasks, 5 min",
                    "Tasks that failed. Spark runs one again when the broker took back memory that it read.",
                    NUMBER,
                    Query(f"sum(increase(metrics_executor_failedTasks_total{EXECUTORS}[5m]))"),
                    Levels(1, 10),
                ),
            ],
            "Batches": [
                graph(
                    "Batch duration",
                    "What the last batch took as a whole.",
                    SECONDS,
                    Query(f"penstock_query_batch_seconds{WHOLE}", "{{query}}"),
                    levels=Levels(1, 10),
                ),
                graph(
                    "Batch duration by phase",
                    "addBatch is the work on the records; the rest is Spark's book-keeping.",
                    SECONDS,
                    Query(
                        f"penstock_query_batch_seconds{PHASES}",
                        "{{query}} {{phase}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "Input and processing rate",
                    "Rows that arrived per second, and how many per second it can do. Input above "
                    "processing: the query falls behind.",
                    RECORDS_PER_SECOND,
                    Query(f"penstock_query_input_rows_per_second{QUERY}", "{{query}} input"),
                    Query(f"penstock_query_processed_rows_per_second{QUERY}", "{{query}} processing"),
                ),
            ],
            "Reading": [
                graph(
                    "Records read by way",
                    "Push is read from shared memory in place, pull by Fetch requests.",
                    RECORDS_PER_SECOND,
                    Query(
                        rate("penstock_query_read_records_total", QUERY, "query, way"), "{{query}} {{way}}"
                    ),
                ),
                graph(
                    "Lag",
                    "Records not read yet at the end of the last batch: the worst partition and the average.",
                    NUMBER,
                    Query(
                        f"penstock_query_offsets_behind_latest{WORST_AND_AVERAGE}",
                        "{{query}} {{statistic}}",
                    ),
                    levels=Levels(10_000, 1_000_000),
                ),
                graph(
                    "Latency",
                    "From a record's timestamp to the end of its micro-batch; in real time to its task.",
                    SECONDS,
                    Query(f"penstock_query_latency_seconds{QUERY}", "{{query}} p{{quantile}}"),
                    levels=Levels(2, 10),
                ),
            ],
            "State": [
                graph(
                    "State rows",
                    "Rows in the state stores; 0 for a query without state.",
                    NUMBER,
                    Query(f"penstock_query_state_rows{QUERY}", "{{query}}"),
                ),
                graph(
                    "State size",
                    "Memory of the state stores.",
                    BYTES,
                    Query(f"penstock_query_state_bytes{QUERY}", "{{query}}"),
                ),
                graph(
                    "Change-overs",
                    "Times that a reader went from push to pull or back, in five minutes.",
                    NUMBER,
                    Query(
                        summed(f"increase(penstock_query_change_overs_total{QUERY}[5m])", "query"),
                        "{{query}}",
                    ),
                    levels=Levels(1, 100),
                ),
            ],
            "Executors": [
                graph(
                    "Tasks",
                    "Tasks that run, of the slots there are. Real-time queries hold theirs.",
                    NUMBER,
                    Query(
                        f"metrics_executor_activeTasks{EXECUTORS}",
                        "{{application_name}} {{executor_id}} active",
                    ),
                    Query(
                        f"metrics_executor_maxTasks{EXECUTORS}", "{{application_name}} {{executor_id}} slots"
                    ),
                ),
                graph(
                    "JVM memory",
                    "Heap in use, and files mapped: the log in shared memory is among the latter.",
                    BYTES,
                    Query(
                        f"metrics_executor_JVMHeapMemory_bytes{EXECUTORS}",
                        "{{application_name}} {{executor_id}} heap",
                    ),
                    Query(
                        f"metrics_executor_MappedPoolMemory_bytes{EXECUTORS}",
                        "{{application_name}} {{executor_id}} mapped",
                    ),
                ),
                graph(
                    "Garbage collection",
                    "Seconds per second spent in it.",
                    SECONDS,
                    Query(
                        or_zero(
                            rate(
                                "metrics_executor_totalGCTime_seconds_total",
                                EXECUTORS,
                                "application_name, executor_id",
                            )
                        ),
                        "{{application_name}} {{executor_id}}",
                    ),
                    levels=Levels(0.1, 0.5),
                ),
            ],
        },
    )
