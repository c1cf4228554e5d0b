"""A query's progress as Prometheus metrics: `export_progress(spark, port=9645)` and every streaming query of
the session is on http://localhost:9645/metrics, by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAG: Final = {
    "min": "minOffsetsBehindLatest",
    "avg": "avgOffsetsBehindLatest",
    "max": "maxOffsetsBehindLatest",
}
WAYS: Final = ("push", "pull")


class ProgressExporter(StreamingQueryListener):
    """Told by Spark after every batch; keeps the last figures of each query."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"penstock_query_{name}", text, ("query", *labels), registry=registry)

        self._names: dict[str, str] = {}
        self._running = gauge("running", "1 while the query runs")
        self._batch = gauge("batch_id", "number of the last batch")
        self._rate_in = gauge("input_rows_per_second", "rows that arrived per second")
        self._rate_done = gauge("processed_rows_per_second", "rows processed per second")
        self._seconds = gauge("batch_seconds", "what the last batch took, by phase", "phase")
        self._lag = gauge("offsets_behind_latest", "records not read yet, per partition", "statistic")
        self._read = gauge("read_records", "records read since the query's start", "way")
        self._read_bytes = gauge("read_bytes", "bytes read since the query's start", "way")
        self._changes = gauge("change_overs", "times a reader went from push to pull or back")
        self._state_rows = gauge("state_rows", "rows in the state stores")
        self._rows = Counter("penstock_query_rows", "rows processed", ("query",), registry=registry)

    def onQueryStarted(self, event: Any) -> None:
        self._names[str(event.id)] = event.name or str(event.id)
        self._running.labels(self._names[str(event.id)]).set(1)

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        name = progress.name or str(progress.id)
        self._batch.labels(name).set(progress.batchId)
        self._rows.labels(name).inc(progress.numInputRows)
        self._rate_in.labels(name).set(_number(progress.inputRowsPerSecond))
        self._rate_done.labels(name).set(_number(progress.processedRowsPerSecond))
        for phase, millis in progress.durationMs.items():
            self._seconds.labels(name, phase).set(millis / 1000)
        self._state_rows.labels(name).set(sum(state.numRowsTotal for state in progress.stateOperators))
        for source in progress.sources:
            self._source(name, dict(source.metrics))

    def _source(self, name: str, figures: dict[str, str]) -> None:
        for statistic, key in LAG.items():
            if key in figures:
                self._lag.labels(name, statistic).set(float(figures[key]))
        for way in WAYS:
            if f"{way}Records" in figures:
                self._read.labels(name, way).set(float(figures[f"{way}Records"]))
                self._read_bytes.labels(name, way).set(float(figures[f"{way}Bytes"]))
        if "changeOvers" in figures:
            self._changes.labels(name).set(float(figures["changeOvers"]))

    def onQueryIdle(self, event: Any) -> None:
        """Nothing new: the last figures stand."""

    def onQueryTerminated(self, event: Any) -> None:
        self._running.labels(self._names.pop(str(event.id), str(event.id))).set(0)


def _number(value: float) -> float:
    """Spark says NaN for a rate over no time at all."""
    return value if value == value else 0.0


def export_progress(spark: SparkSession, port: int | None = None) -> ProgressExporter:
    """Listens to all queries of a session; with a port, also serves the metrics over HTTP."""
    exporter = ProgressExporter()
    spark.streams.addListener(exporter)
    if port:
        start_http_server(port)
    return exporter
