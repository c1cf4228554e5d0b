"""Brokers per node: the same partitions on one broker process and on two, which share all CPUs with the load.

A broker is one process with one busy thread; `penstock node --brokers N` runs several. Nothing is pinned:
on a machine with two CPUs the producers need one of them, so that there is little to be won.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.bench import replicas
from penstock.bench.experiment import Better, Figures, Metric, Parameter, Plot, Variant
from penstock.bench.experiments import ingest
from penstock.bench.load import Load, fill, measured_load
from penstock.settings import parse_size


class Subject(ingest.Subject):
    about = "ingestion with one and with two broker processes on the node"
    parameters = (
        Parameter("chunk", "1KiB,128KiB", "Chunk sizes, one record batch each.", quick="16KiB"),
        Parameter("partitions", "8", "One chunk each, per request."),
        Parameter("producers", "4", "Of each broker: connections, each with one request on its way."),
        Parameter("memory", "1GiB", "Memory budget of all brokers.", quick="512MiB"),
    )
    metrics = (
        Metric("records_per_second", "records/s", Better.MORE),
        Metric("cpu_us_per_record", "us", Better.LESS),
        Metric("latency_ms_p50", "ms", Better.LESS),
        Metric("latency_ms_p99", "ms", Better.LESS),
    )
    contenders = ("1 broker", "2 brokers")
    baseline = "1 broker"
    goals = ()
    plots = (Plot(("records_per_second", "cpu_us_per_record"), along="chunk"),)
    seconds = 3.0
    repeat = 3
    quick_repeat = 1
    in_quick_run = False

    def variants(self) -> Sequence[Variant]:
        return [{"chunk": chunk} for chunk in self.options.texts("chunk")]

    def start(self, contender: str) -> None:
        count = int(contender.split()[0])
        budget = parse_size(self.options.text("memory"))
        server = replicas.make("penstock", self.rig, budget // count, count, cpus=self._everything())
        server.start()
        server.create_topic(ingest.TOPIC, self.options.number("partitions"), ingest.KEPT, 1)
        self._servers[contender, 1] = server
        fill(server, Load(ingest.TOPIC, self.options.number("partitions"), "64KiB"), int(1.2 * budget))

    def warm_up(self, contender: str, variant: Variant) -> None:
        self.measure(contender, variant)

    def measure(self, contender: str, variant: Variant) -> Figures:
        load = self._load_of(variant)
        server = self._server(contender, variant)
        return measured_load(server, load, self.options.seconds, self._everything())

    def _everything(self) -> frozenset[int]:
        return self.rig.server_cpus | self.rig.load_cpus
