"""Prometheus metrics, made from the broker's plain counters when somebody scrapes.

The hot path counts with integers of its own (`stats`, the logs, the pool); this collector reads them on
the event loop. Labels are topics, APIs, groups and readers' names; where clients choose the name, the
number of series is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from penstock import __version__
from penstock.broker.catalog import Catalog
from penstock.broker.groups.model import GroupView
from penstock.broker.http.totals import Totals, total
from penstock.broker.stats import BUCKETS, RequestStats
from penstock.shm.cursors import ReaderSlot
from penstock.wire.apis import ApiKey

if TYPE_CHECKING:
    from penstock.broker.server import Broker

log = logging.getLogger(__name__)

MAX_SERIES: Final = 1000
"""Of pairs of group or reader and topic; beyond, those furthest behind are shown and the rest counted."""
OTHER: Final = "(other)"
_LOOK_SECONDS: Final = 1.0


class Metrics:
    """The registry of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reader_totals = ReaderTotals()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(BrokerCollector(broker, self._reader_totals))
        ProcessCollector(registry=self._registry)

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type: OpenMetrics or the classic one, as `accept` asks."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    async def follow_readers(self) -> None:
        """Look at the readers between scrapes too, so that those with short lives are counted."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                self._reader_totals.observe(self._broker.store.readers.slots(), self._broker.catalog)
            except Exception:
                log.exception("counting what readers read failed")


class BrokerCollector(Collector):
    def __init__(self, broker: Broker, reader_totals: ReaderTotals) -> None:
        self._broker = broker
        self._reader_totals = reader_totals

    def describe(self) -> Iterable[Metric]:
        return ()  # names don't depend on the state, and asking for it before the start would fail

    def collect(self) -> Iterable[Metric]:
        broker = self._broker
        yield InfoMetricFamily(
            "penstock_build",
            "What is running",
            value={"version": __version__, "python": platform.python_version()},
        )
        ready = int(broker.unready_reason() is None)
        yield GaugeMetricFamily("penstock_ready", "1 while clients are served", ready)
        yield from requests(broker.stats)
        yield GaugeMetricFamily("penstock_connections", "Kafka clients connected", len(broker.connections))
        yield GaugeMetricFamily(
            "penstock_fetches_waiting", "Fetch requests that wait for records", broker.fetch.waiting
        )
        yield GaugeMetricFamily(
            "penstock_request_buffer_bytes", "Memory for requests being received", broker.buffers.borrowed
        )
        totals = {served.topic.name: total(served.logs) for served in broker.catalog}
        yield from topics(totals)
        yield from self._memory()
        yield from self._disk(totals.values())
        yield from group_lag(broker.groups.groups(), broker.catalog)
        slots = list(broker.store.readers.slots())
        self._reader_totals.observe(slots, broker.catalog)
        yield GaugeMetricFamily(
            "penstock_readers", "Processes that read shared memory", len(broker.store.readers)
        )
        yield from reader_lag(slots, broker.catalog)
        yield from self._reader_totals.metrics()

    def _memory(self) -> Iterator[Metric]:
        store = self._broker.store
        use = store.pool.use
        for name, text, value in (
            ("budget", "What the log may take of shared memory", use.budget),
            ("pool", "Shared memory that the pool has made, in use or free", use.total),
            ("free", "Warm segments to be handed out again", use.free),
            ("retiring", "Segments given up by their log, waiting for a last look", use.retiring),
            ("detached", "Segments kept alive for readers that have them pinned", use.detached),
        ):
            yield GaugeMetricFamily(f"penstock_memory_{name}_bytes", text, value)
        yield CounterMetricFamily(
            "penstock_memory_evictions", "Segments that left memory for newer ones", store.evictions
        )
        yield CounterMetricFamily(
            "penstock_memory_taken_from_readers",
            "Segments taken although a reader had them pinned: it reads again by pull",
            store.pool.taken_from_readers,
        )

    def _disk(self, totals: Collection[Totals]) -> Iterator[Metric]:
        store = self._broker.store
        behind = store.write_behind
        size, unflushed = sum(logs.log_bytes for logs in totals), sum(logs.unflushed for logs in totals)
        yield GaugeMetricFamily("penstock_disk_log_bytes", "Size of all logs", size)
        yield GaugeMetricFamily(
            "penstock_disk_free_bytes",
            "Room left where the logs are",
            shutil.disk_usage(store.disk_directory).free,
        )
        yield GaugeMetricFamily(
            "penstock_disk_refuses", "1 while the disk doesn't take the log", int(behind.failure is not None)
        )
        yield CounterMetricFamily(
            "penstock_write_behind_bytes", "Bytes copied from memory to disk", behind.bytes_written
        )
        yield GaugeMetricFamily(
            "penstock_write_behind_lag_seconds", "Age of the oldest bytes not on disk", behind.lag
        )
        yield GaugeMetricFamily("penstock_write_behind_unflushed_bytes", "Bytes not on disk", unflushed)


def api_name(api_key: int) -> str:
    """As Kafka's documentation spells it."""
    try:
        return ApiKey(api_key).name.title().replace("_", "")
    except ValueError:
        return str(api_key)


def requests(stats: RequestStats) -> Iterator[Metric]:
    seconds = HistogramMetricFamily(
        "penstock_request_seconds", "From a request's last byte to its answer", labels=["api"]
    )
    bounds = [*map(str, BUCKETS), "+Inf"]
    for api_key, latency in stats.latency.items():
        buckets = list(zip(bounds, accumulate(latency.counts), strict=True))
        seconds.add_metric([api_name(api_key)], buckets, latency.total)
    yield seconds
    errors = CounterMetricFamily(
        "penstock_request_errors", "Requests, or parts of them, refused", labels=["api", "code"]
    )
    for (api_key, code), count in stats.errors.items():
        errors.add_metric([api_name(api_key), code], count)
    yield errors


def topics(totals: Mapping[str, Totals]) -> Iterator[Metric]:
    labels = ["topic"]
    records_in = CounterMetricFamily("penstock_topic_records_in", "Records appended", labels=labels)
    bytes_in = CounterMetricFamily("penstock_topic_bytes_in", "Bytes appended", labels=labels)
    records_out = CounterMetricFamily("penstock_topic_records_out", "Records fetched by pull", labels=labels)
    bytes_out = CounterMetricFamily("penstock_topic_bytes_out", "Bytes fetched by pull", labels=labels)
    log_bytes = GaugeMetricFamily("penstock_topic_log_bytes", "Size of the topic's logs", labels=labels)
    hot_bytes = GaugeMetricFamily("penstock_topic_memory_bytes", "Shared memory of the topic", labels=labels)
    partitions = GaugeMetricFamily("penstock_topic_partitions", "Partitions", labels=labels)
    offline = GaugeMetricFamily("penstock_topic_partitions_offline", "Damaged partitions", labels=labels)
    for name, logs in totals.items():
        records_in.add_metric([name], logs.records_in)
        bytes_in.add_metric([name], logs.bytes_in)
        records_out.add_metric([name], logs.records_out)
        bytes_out.add_metric([name], logs.bytes_out)
        log_bytes.add_metric([name], logs.log_bytes)
        hot_bytes.add_metric([name], logs.hot_bytes)
        partitions.add_metric([name], logs.partitions)
        offline.add_metric([name], logs.offline)
    yield from (records_in, bytes_in, records_out, bytes_out, log_bytes, hot_bytes, partitions, offline)


def group_lag(groups: Iterable[GroupView], catalog: Catalog) -> Iterator[Metric]:
    lags: dict[tuple[str, str], list[int]] = defaultdict(list)
    for group in groups:
        for (topic, partition), committed in group.offsets.items():
            served = catalog.by_name.get(topic)
            if served is not None and partition in served.replicas:
                lag = max(0, served.replicas[partition].high_watermark - committed.offset)
                lags[group.group_id, topic].append(lag)
    return _lag_metrics("group", lags)


def reader_lag(slots: Iterable[ReaderSlot], catalog: Catalog) -> Iterator[Metric]:
    lags: dict[tuple[str, str], list[int]] = defaultdict(list)
    for slot in slots:
        served = catalog.by_id.get(slot.topic_id)
        if served is not None and slot.partition in served.replicas:
            lag = max(0, served.replicas[slot.partition].high_watermark - slot.finished)
            lags[slot.label, served.topic.name].append(lag)
    return _lag_metrics("reader", lags)


def _lag_metrics(who: str, lags: dict[tuple[str, str], list[int]]) -> Iterator[Metric]:
    total = GaugeMetricFamily(
        f"penstock_{who}_lag_records", "Records behind, all partitions", labels=[who, "topic"]
    )
    worst = GaugeMetricFamily(
        f"penstock_{who}_max_lag_records", "Records behind, the worst partition", labels=[who, "topic"]
    )
    shown = sorted(lags.items(), key=lambda entry: -max(entry[1]))[:MAX_SERIES]
    for pair, behind in shown:
        total.add_metric(pair, sum(behind))
        worst.add_metric(pair, max(behind))
    yield from (total, worst)
    yield GaugeMetricFamily(
        f"penstock_{who}_lag_omitted", "Pairs with a topic not shown, to bound labels", len(lags) - len(shown)
    )


class ReaderTotals:
    """What readers of shared memory took, summed by their label, beyond the life of each.

    A cursor's counts start at 0 with every reader and go with it, so the differences between two looks
    are added up here. What a reader does between the last look and its end is not seen.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, bytes, int], ReaderSlot] = {}
        self._records: dict[tuple[str, str, str], int] = defaultdict(int)
        self._bytes: dict[tuple[str, str, str], int] = defaultdict(int)

    def observe(self, slots: Iterable[ReaderSlot], catalog: Catalog) -> None:
        seen: dict[tuple[str, bytes, int], ReaderSlot] = {}
        for slot in slots:
            key = (slot.session, slot.topic_id, slot.partition)
            last = self._last.get(key)
            seen[key] = slot
            served = catalog.by_id.get(slot.topic_id)
            if served is None:
                continue
            topic = served.topic.name
            before = (0, 0, 0, 0) if last is None else _counts(last)
            now = _counts(slot)
            if now[0] < before[0] or now[2] < before[2]:  # the slot was taken anew
                before = (0, 0, 0, 0)
            self._add(slot.label, topic, "push", now[0] - before[0], now[1] - before[1])
            self._add(slot.label, topic, "pull", now[2] - before[2], now[3] - before[3])
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


def _counts(slot: ReaderSlot) -> tuple[int, int, int, int]:
    return slot.push_records, slot.push_bytes, slot.pull_records, slot.pull_bytes
