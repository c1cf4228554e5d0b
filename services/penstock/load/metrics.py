"""What the producers of a run do, for Prometheus: `penstock load --metrics HOST:PORT`.

Read from the run's tally on the exporter's thread when somebody scrapes; the producers don't notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.load.producer import Tally


class TallyCollector(Collector):
    def __init__(self, topic: str, tally: Tally) -> None:
        self._topic = topic
        self._tally = tally

    def collect(self) -> Iterator[Metric]:
        tally, topic = self._tally, self._topic
        for name, text, value in (
            ("records", "Records written", tally.records),
            ("bytes", "Bytes of record batches written", tally.bytes),
        ):
            counter = CounterMetricFamily(f"penstock_producer_{name}", text, labels=["topic"])
            counter.add_metric([topic], value)
            yield counter
        requests = CounterMetricFamily(
            "penstock_producer_requests", "Requests, by what became of them", labels=["topic", "outcome"]
        )
        requests.add_metric([topic, "acknowledged"], tally.requests)
        requests.add_metric([topic, "refused"], tally.refused)
        yield requests
        seconds = HistogramMetricFamily(
            "penstock_producer_request_seconds", "From sending a request to its answer", labels=["topic"]
        )
        tally.latency.add_to(seconds, [topic])
        yield seconds


@contextmanager
def serve_metrics(address: str | None, topic: str, tally: Tally) -> Iterator[None]:
    """On HOST:PORT for the length of a block; with None, nowhere. Raises OSError when it is taken."""
    if address is None:
        yield
        return
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry()
    registry.register(TallyCollector(topic, tally))
    ProcessCollector(registry=registry)
    server, thread = start_http_server(int(port), host.strip("[]") or "0.0.0.0", registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
