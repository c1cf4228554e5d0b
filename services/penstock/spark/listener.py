"""A query's progress as Prometheus metrics: `export_progress(spark, port=9646)` and every streaming query of
the session is on http://localhost:9646/metrics, by name.

Spark tells the listener after every batch, in real time when a batch of minutes ends; how it goes in
between is in the broker's metrics. docs/observability.md lists the names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.spark.latency import latencies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Key = tuple[str, ...]

GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "running": ("1 while the query runs", ()),
    "batch_id": ("Number of the last batch", ()),
    "input_rows_per_second": ("Rows that arrived per second", ()),
    "processed_rows_per_second": ("Rows processed per second", ()),
    "batch_seconds": ("What the last batch took, by phase", ("phase",)),
    "offsets_behind_latest": ("Records of a partition not read yet", ("statistic",)),
    "state_rows": ("Rows in the state stores", ()),
    "state_bytes": ("Memory of the state stores", ()),
    "latency_seconds": ("From a record's timestamp to the end of its batch, or to its task", ("quantile",)),
}
COUNTERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "batches": ("Batches done", ()),
    "rows": ("Rows processed", ()),
    "read_records": ("Records read, by way", ("way",)),
    "read_bytes": ("Bytes read, by way", ("way",)),
    "change_overs": ("Times a reader went from push to pull or back", ()),
}
LAG: Final = {
    "min": "minOffsetsBehindLatest",
    "avg": "avgOffsetsBehindLatest",
    "max": "maxOffsetsBehindLatest",
}
WAYS: Final = ("push", "pull")


@dataclass(slots=True)
class _Figures:
    """What one query said last, and what it has done since this process began."""

    gauges: dict[str, dict[Key, float]] = field(default_factory=lambda: defaultdict(dict))
    counters: dict[str, dict[Key, float]] = field(default_factory=lambda: defaultdict(dict))
    run: str = ""
    so_far: dict[str, float] = field(default_factory=dict)
    """The source's totals of this run, which start at 0 with every start of the query."""

    def set(self, name: str, value: float, *labels: str) -> None:
        self.gauges[name][labels] = value

    def add(self, name: str, value: float, *labels: str) -> None:
        self.counters[name][labels] = self.counters[name].get(labels, 0.0) + value


class ProgressExporter(StreamingQueryListener, Collector):
    """Told by Spark after every batch; keeps the last figures of each query."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._queries: dict[str, _Figures] = {}
        self._names: dict[str, str] = {}
        registry.register(self)

    # What Spark says

    def onQueryStarted(self, event: Any) -> None:
        name = self._names[str(event.runId)] = event.name or str(event.id)
        figures = self._of(name, str(event.runId))
        figures.set("running", 1)
        for way in WAYS:  # there from the start: the first change must be seen as one
            figures.add("read_records", 0, way)
            figures.add("read_bytes", 0, way)
        for counter in ("batches", "rows", "change_overs"):
            figures.add(counter, 0)

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        figures = self._of(progress.name or str(progress.id), str(progress.runId))
        figures.set("batch_id", progress.batchId)
        figures.add("batches", 1)
        figures.add("rows", progress.numInputRows)
        figures.set("input_rows_per_second", _number(progress.inputRowsPerSecond))
        figures.set("processed_rows_per_second", _number(progress.processedRowsPerSecond))
        for phase, millis in progress.durationMs.items():
            figures.set("batch_seconds", millis / 1000, phase)
        figures.set("state_rows", sum(state.numRowsTotal for state in progress.stateOperators))
        figures.set("state_bytes", sum(state.memoryUsedBytes for state in progress.stateOperators))
        for quantile, seconds in latencies(progress).items():
            figures.set("latency_seconds", seconds, quantile)
        for number, source in enumerate(progress.sources):
            self._source(figures, number, dict(source.metrics))

    def onQueryIdle(self, event: Any) -> None:
        """Nothing new: the last figures stand."""

    def onQueryTerminated(self, event: Any) -> None:
        name = self._names.pop(str(event.runId), str(event.id))
        self._of(name, str(event.runId)).set("running", 0)

    def _of(self, name: str, run: str) -> _Figures:
        figures = self._queries.get(name)
        if figures is None:
            # Replaced as a whole: the exporter's thread may be walking over it.
            figures = _Figures()
            self._queries = {**self._queries, name: figures}
        if figures.run != run:
            figures.run = run
            figures.so_far.clear()
        return figures

    def _source(self, figures: _Figures, number: int, source: Mapping[str, str]) -> None:
        for statistic, key in LAG.items():
            if key in source:
                figures.set("offsets_behind_latest", float(source[key]), statistic)
        for way in WAYS:
            self._grow(figures, "read_records", source, number, f"{way}Records", way)
            self._grow(figures, "read_bytes", source, number, f"{way}Bytes", way)
        self._grow(figures, "change_overs", source, number, "changeOvers")

    @staticmethod
    def _grow(
        figures: _Figures, name: str, source: Mapping[str, str], number: int, key: str, *labels: str
    ) -> None:
        now, place = float(source.get(key, 0)), f"{number} {key}"
        figures.add(name, max(0.0, now - figures.so_far.get(place, 0.0)), *labels)
        figures.so_far[place] = now

    # What Prometheus asks

    def collect(self) -> Iterator[Metric]:
        queries = self._queries
        for name, (text, labels) in GAUGES.items():
            gauge = GaugeMetricFamily(f"penstock_query_{name}", text, labels=("query", *labels))
            for query, figures in queries.items():
                for values, value in dict(figures.gauges[name]).items():
                    gauge.add_metric((query, *values), value)
            yield gauge
        for name, (text, labels) in COUNTERS.items():
            counter = CounterMetricFamily(f"penstock_query_{name}", text, labels=("query", *labels))
            for query, figures in queries.items():
                for values, value in dict(figures.counters[name]).items():
                    counter.add_metric((query, *values), value)
            yield counter


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
