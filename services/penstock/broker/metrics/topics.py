"""What goes in and out of topics, and where their bytes are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.broker.http.totals import Totals
from penstock.broker.metrics.readers import ReaderTotals

_LABELS: Final = ["topic"]


def topics(totals: Mapping[str, Totals], readers: ReaderTotals) -> Iterator[Metric]:
    yield from _flow(totals, readers)
    yield from _places(totals)


def _flow(totals: Mapping[str, Totals], readers: ReaderTotals) -> Iterator[Metric]:
    records_in = CounterMetricFamily("penstock_topic_records_in", "Records produced", labels=_LABELS)
    bytes_in = CounterMetricFamily("penstock_topic_bytes_in", "Bytes produced", labels=_LABELS)
    copied = CounterMetricFamily(
        "penstock_topic_bytes_replicated", "Bytes taken over from leaders elsewhere", labels=_LABELS
    )
    ways = [*_LABELS, "way"]
    records_out = CounterMetricFamily("penstock_topic_records_out", "Records read, by way", labels=ways)
    bytes_out = CounterMetricFamily("penstock_topic_bytes_out", "Bytes read, by way", labels=ways)
    for name, logs in totals.items():
        records_in.add_metric([name], logs.records_in)
        bytes_in.add_metric([name], logs.bytes_in)
        copied.add_metric([name], logs.bytes_replicated)
        records_out.add_metric([name, "pull"], logs.records_out)
        bytes_out.add_metric([name, "pull"], logs.bytes_out)
        records_out.add_metric([name, "push"], readers.pushed_records.get(name, 0))
        bytes_out.add_metric([name, "push"], readers.pushed_bytes.get(name, 0))
    yield from (records_in, bytes_in, copied, records_out, bytes_out)


def _places(totals: Mapping[str, Totals]) -> Iterator[Metric]:
    log_bytes = GaugeMetricFamily("penstock_topic_log_bytes", "Size of the topic's logs", labels=_LABELS)
    hot_bytes = GaugeMetricFamily("penstock_topic_memory_bytes", "Shared memory of the topic", labels=_LABELS)
    partitions = GaugeMetricFamily("penstock_topic_partitions", "Partitions with a log here", labels=_LABELS)
    offline = GaugeMetricFamily("penstock_topic_partitions_offline", "Damaged partitions", labels=_LABELS)
    segments = GaugeMetricFamily(
        "penstock_topic_segments",
        "Segments in memory, and on disk only",
        labels=[*_LABELS, "place"],
    )
    for name, logs in totals.items():
        log_bytes.add_metric([name], logs.log_bytes)
        hot_bytes.add_metric([name], logs.hot_bytes)
        partitions.add_metric([name], logs.partitions)
        offline.add_metric([name], logs.offline)
        segments.add_metric([name, "memory"], logs.hot_segments)
        segments.add_metric([name, "disk"], logs.segments - logs.hot_segments)
    yield from (log_bytes, hot_bytes, partitions, offline, segments)
