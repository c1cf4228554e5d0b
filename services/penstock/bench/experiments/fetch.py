"""Reading by pull: records per second and broker CPU per GB of Kafka's Fetch, ours and Apache Kafka's.

A topic that is in memory as a whole is read round and round. `raw` is a lean reader that counts batches
and decodes nothing, so that the broker is what is measured; aiokafka and librdkafka are what a user has, and
are their own limit. Their bytes are those of values, a tenth less than what the broker sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from penstock.bench import reading, servers
from penstock.bench.experiment import Better, Experiment, Figures, Metric, Options, Parameter, Variant
from penstock.bench.load import Load, fill
from penstock.bench.rig import Rig
from penstock.bench.servers import Server
from penstock.bench.warming import until_steady
from penstock.settings import parse_size

_TOPIC: Final = "read"
_STEADY: Final = 0.05
_SLACK: Final = 1.5
"""Memory budget to data: everything stays in memory, and the load has room to overshoot."""


class Subject(Experiment):
    about = "pull: records/s and broker CPU per GB of Fetch, against Apache Kafka"
    parameters = (
        Parameter("size", "1GiB", "How much is in the topic.", quick="256MiB"),
        Parameter("chunk", "16KiB", "Size of its record batches."),
        Parameter("partitions", "8", "Of the topic."),
    )
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("records_per_second", "records/s", Better.MORE),
        Metric("gigabytes_per_second", "GB/s", Better.MORE),
        Metric("broker_cpu_seconds_per_gb", "s/GB", Better.LESS),
    )
    contenders: ClassVar[tuple[str, ...]] = (
        "raw",
        "kafka raw",
        "aiokafka",
        "kafka aiokafka",
        "librdkafka",
        "kafka librdkafka",
    )
    baseline = "kafka raw"
    seconds = 3.0

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._servers: dict[str, Server] = {}

    def variants(self) -> Sequence[Variant]:
        return [{"chunk": chunk} for chunk in self.options.texts("chunk")]

    def start(self, contender: str) -> None:
        broker, way = _split(contender)
        reading.check(way)
        if broker not in self._servers:
            size = parse_size(self.options.text("size"))
            server = servers.make(broker, self.rig, int(size * _SLACK * len(self.variants()) + (256 << 20)))
            server.start()
            for variant in self.variants():
                topic, partitions = _topic(variant), self.options.number("partitions")
                server.create_topic(topic, partitions, {})
                fill(server, Load(topic, partitions, variant["chunk"]), size)
            self._servers[broker] = server

    def warm_up(self, contender: str, variant: Variant) -> None:
        """Python clients are their own limit, and idling costs nothing per GB: once is enough for them."""

        def cost() -> float:
            figures = self._read(contender, variant, self.options.seconds / 2)
            return figures.get("broker_cpu_seconds_per_gb", 0.0)

        looks = (3, 10) if contender.endswith("raw") else (1, 1)
        until_steady(cost, _STEADY, least=looks[0], most=looks[1])

    def measure(self, contender: str, variant: Variant) -> Figures:
        return self._read(contender, variant, self.options.seconds)

    def versions(self) -> dict[str, str]:
        return {name: server.version for name, server in self._servers.items()}

    def _read(self, contender: str, variant: Variant, seconds: float) -> Figures:
        broker, way = _split(contender)
        partitions = self.options.number("partitions")
        return reading.measured_read(self._servers[broker], way, _topic(variant), partitions, seconds)


def _split(contender: str) -> tuple[str, str]:
    """(broker, way of reading) of a contender's name."""
    broker, _, way = contender.rpartition(" ")
    return broker or "penstock", way


def _topic(variant: Variant) -> str:
    return f"{_TOPIC}-{variant['chunk']}"
