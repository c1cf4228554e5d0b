"""Prometheus metrics, made from the broker's plain counters when somebody scrapes.

The hot path counts with integers of its own (`stats`, the logs, the pool); this collector reads them on
the event loop. Labels are topics, APIs, brokers, groups and readers' names, never partitions; where
clients choose the name, the number of series is bounded. docs/observability.md lists them all.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import shutil
from collections.abc import Collection, Iterable, Iterator
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
from penstock.broker.http.totals import Totals, total
from penstock.broker.metrics.readers import ReaderTotals, group_lag, reader_lag
from penstock.broker.metrics.replication import replication
from penstock.broker.metrics.topics import topics
from penstock.broker.stats import RequestStats
from penstock.wire.apis import ApiKey

if TYPE_CHECKING:
    from penstock.broker.server import Broker

log = logging.getLogger(__name__)

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
                self._reader_totals.observe(self._broker.store.readers.counts(), self._broker.catalog)
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
            value={
                "version": __version__,
                "python": platform.python_version(),
                "broker": str(broker.settings.broker_id),
            },
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
        readers = broker.store.readers
        self._reader_totals.observe(readers.counts(), broker.catalog)
        totals = {served.topic.name: total(served.logs) for served in broker.catalog}
        yield from topics(totals, self._reader_totals)
        yield from self._memory(totals.values())
        yield from self._disk(totals.values())
        yield from group_lag(broker.groups.groups(), broker.catalog)
        yield GaugeMetricFamily("penstock_readers", "Processes that read shared memory", len(readers))
        yield from reader_lag(readers.slots(), broker.catalog)
        yield from self._reader_totals.metrics()
        yield from replication(broker)

    def _memory(self, totals: Collection[Totals]) -> Iterator[Metric]:
        store = self._broker.store
        use = store.pool.use
        held = use.detached + use.retiring + sum(logs.held_bytes for logs in totals)
        room = shutil.disk_usage(store.memory_directory)
        for name, text, value in (
            ("budget", "What the log may take of shared memory", use.budget),
            ("pool", "Shared memory that the pool has made, in use or free", use.total),
            ("free", "Warm segments to be handed out again", use.free),
            ("retiring", "Segments given up by their log, waiting for a last look", use.retiring),
            ("detached", "Segments kept alive for readers that have them pinned", use.detached),
            ("held", "What can't be had back now: being written, not on disk yet, or pinned", held),
            ("filesystem_size", "The file system that shared memory is on", room.total),
            ("filesystem_free", "Room left in the file system that shared memory is on", room.free),
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
        disk = shutil.disk_usage(store.disk_directory)
        yield GaugeMetricFamily(
            "penstock_disk_size_bytes", "The file system that the logs are on", disk.total
        )
        yield GaugeMetricFamily("penstock_disk_free_bytes", "Room left where the logs are", disk.free)
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
    for api_key, latency in stats.latency.items():
        latency.add_to(seconds, [api_name(api_key)])
    yield seconds
    errors = CounterMetricFamily(
        "penstock_request_errors", "Requests, or parts of them, refused", labels=["api", "code"]
    )
    for (api_key, code), count in stats.errors.items():
        errors.add_metric([api_name(api_key), code], count)
    yield errors
