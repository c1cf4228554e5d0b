"""Who reads: lag of groups and of readers of shared memory, and what the latter took.

Names of groups and readers are chosen by clients, so the number of series is bounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.broker.catalog import Catalog
from penstock.broker.groups.model import GroupView
from penstock.shm.cursors import ReaderSlot

MAX_SERIES: Final = 1000
"""Of lags, and of readers' counts; beyond, those furthest behind are shown and the rest counted."""
OTHER: Final = "(other)"

Counts = tuple[int, ...]
"""Records and bytes by push, records and bytes by pull."""
Lags = dict[tuple[str, ...], list[int]]


def group_lag(groups: Iterable[GroupView], catalog: Catalog) -> Iterator[Metric]:
    lags: Lags = defaultdict(list)
    for group in groups:
        for (topic, partition), committed in group.offsets.items():
            served = catalog.by_name.get(topic)
            if served is not None and partition in served.replicas:
                lag = max(0, served.replicas[partition].high_watermark - committed.offset)
                lags[group.group_id, topic].append(lag)
    return _lag_metrics("group", ["group", "topic"], lags)


def reader_lag(slots: Iterable[ReaderSlot], catalog: Catalog) -> Iterator[Metric]:
    lags: Lags = defaultdict(list)
    for slot in slots:
        served = catalog.by_id.get(slot.topic_id)
        if served is not None and slot.partition in served.replicas:
            lag = max(0, served.replicas[slot.partition].high_watermark - slot.finished)
            lags[slot.label, served.topic.name, slot.state.name.lower()].append(lag)
    labels = ["reader", "topic", "mode"]
    yield from _lag_metrics("reader", labels, lags)
    partitions = GaugeMetricFamily(
        "penstock_reader_partitions", "Partitions being read, by the way they are read now", labels=labels
    )
    for who, behind in _shown(lags):
        partitions.add_metric(who, len(behind))
    yield partitions


def _shown(lags: Lags) -> list[tuple[tuple[str, ...], list[int]]]:
    return sorted(lags.items(), key=lambda entry: -max(entry[1]))[:MAX_SERIES]


def _lag_metrics(who: str, labels: list[str], lags: Lags) -> Iterator[Metric]:
    total = GaugeMetricFamily(f"penstock_{who}_lag_records", "Records behind, all partitions", labels=labels)
    worst = GaugeMetricFamily(
        f"penstock_{who}_max_lag_records", "Records behind, the worst partition", labels=labels
    )
    shown = _shown(lags)
    for values, behind in shown:
        total.add_metric(values, sum(behind))
        worst.add_metric(values, max(behind))
    yield from (total, worst)
    yield GaugeMetricFamily(
        f"penstock_{who}_lag_omitted", "Lags not shown, to bound labels", len(lags) - len(shown)
    )


class ReaderTotals:
    """What readers of shared memory took, beyond the life of each: by reader, and by topic.

    A cursor file's counts start at 0 with every process and go with it, so the differences between two
    looks are added up here. What a process does between the last look and its end is not seen.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Counts] = {}
        self._records: dict[tuple[str, str, str], int] = defaultdict(int)
        self._bytes: dict[tuple[str, str, str], int] = defaultdict(int)
        self.pushed_records: dict[str, int] = defaultdict(int)
        """By topic; what is pulled counts where it is fetched."""
        self.pushed_bytes: dict[str, int] = defaultdict(int)

    def observe(self, slots: Iterable[ReaderSlot], catalog: Catalog) -> None:
        seen: dict[tuple[str, int], Counts] = {}
        for slot in slots:
            key = (slot.session, slot.index)
            before = self._last.get(key, (0, 0, 0, 0))
            counts = (slot.push_records, slot.push_bytes, slot.pull_records, slot.pull_bytes)
            # The file is read while it is written, without a lock: a look never takes anything back.
            now = seen[key] = tuple(map(max, counts, before))
            served = catalog.by_id.get(slot.topic_id)
            if served is None or now == before:
                continue
            topic = served.topic.name
            self._add(slot.label, topic, "push", now[0] - before[0], now[1] - before[1])
            self._add(slot.label, topic, "pull", now[2] - before[2], now[3] - before[3])
            self.pushed_records[topic] += now[0] - before[0]
            self.pushed_bytes[topic] += now[1] - before[1]
        self._last = seen

    def _add(self, label: str, topic: str, mode: str, records: int, size: int) -> None:
        key = (label, topic, mode)
        if key not in self._records and len(self._records) >= MAX_SERIES:
            key = (OTHER, OTHER, mode)
        self._records[key] += records
        self._bytes[key] += size

    def metrics(self) -> Iterator[Metric]:
        labels = ["reader", "topic", "mode"]
        records = CounterMetricFamily("penstock_reader_records", "Records read", labels=labels)
        size = CounterMetricFamily("penstock_reader_bytes", "Bytes read", labels=labels)
        for key, count in self._records.items():
            records.add_metric(key, count)
            size.add_metric(key, self._bytes[key])
        yield from (records, size)
