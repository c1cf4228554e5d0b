"""Producers and consumers at the same time, on one node: the experiment behind the paper's figures.

A figure is a subclass that says what is swept. The median of the per-second throughput is measured, of
producers and of consumers apart. CPUs: the broker has the first, consumers the last ones; producers have
one of their own if there are three, else they share the broker's, so that what consumers take from
producers they take by way of the broker (the paper's producers are on other nodes).
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from penstock.bench import replicas
from penstock.bench.consumers import (
    SPARK,
    Consumers,
    NativeConsumers,
    NoConsumers,
    Reading,
    SparkConsumers,
    median_per_second,
    rate_in_batches_of,
    warm_up,
)
from penstock.bench.experiment import (
    Better,
    CannotStart,
    Experiment,
    Figures,
    Metric,
    Options,
    Parameter,
    Plot,
    Variant,
)
from penstock.bench.load import Load, fill, load_report, measured_load, start_load
from penstock.bench.replicas import Replicated
from penstock.bench.rig import Rig
from penstock.bench.servers import Server
from penstock.bench.sparkprocess import SparkProcess
from penstock.bench.warming import until_steady
from penstock.settings import parse_size

_KEPT: Final = 0.8
"""The share of the memory budget that the topic's retention keeps: all of it stays in memory."""
_FIRST_SECONDS: Final = 1.0
"""Of every sample, left out."""
_WARM_SECONDS: Final = 9.0
_QUICK_WARM_SECONDS: Final = 7.0
_RATED_SECONDS: Final = 5.0
_QUICK_RATED_SECONDS: Final = 3.0
"""At most, until it is known what a warm reader reads on the CPUs it has."""
_BATCH_SECONDS: Final = 2.0
"""How long a micro-batch of a consumer that fell behind may take: what a batch costs whatever its size
should be little of it, and the last one is waited for."""
_KAFKA_WARM: Final = 512 << 20
_KAFKA_LOOK_SECONDS: Final = 1.5
_KAFKA_STEADY: Final = 0.07
_KAFKA_LOOKS: Final = 6
"""At least, the first time: as in `ingest`."""
_KAFKA_MOST_LOOKS: Final = 12
_KAFKA_QUICK_LOOKS: Final = 4
_KAFKA_KEPT: Final = 2 << 30
"""More than it takes in during a sample, on a tmpfs that has to hold our own log too."""
_KAFKA_SEGMENT: Final = {"segment.bytes": str(64 << 20)}


class Way(NamedTuple):
    """What a contender's name stands for."""

    consumer: str | None
    """push, pull or kafka with Spark; native; None for producers alone."""
    broker: str = "penstock"
    replication: int = 1


PUSH_PULL_NATIVE: Final = {"push": Way("push"), "pull": Way("pull"), "native pull": Way("native")}


def scaled(counts: str, each: int = 2) -> str:
    """The paper's numbers of clients, as far as this machine can make sense of them: so many on each CPU, and
    the fewest anyway."""
    most = each * len(os.sched_getaffinity(0))
    first, *others = counts.split(",")
    return ",".join((first, *(count for count in others if int(count) <= most)))


def _ample(gigabytes: int) -> str:
    """So much memory, or three tenths of the machine's: what is written to disk takes as much again."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    return f"{max(1, min(gigabytes, machine * 3 // 10))}GiB"


def parameters(**defaults: str) -> tuple[Parameter, ...]:
    """The parameters of a colocation experiment, with the figure's own values."""
    about = {
        "chunk": ("16KiB", "Chunk sizes of the producers."),
        "clients": ("1", "So many producers and so many consumers."),
        "partitions": ("8", "Of the topic."),
        "query": ("pass", "What consumers do: pass (iterate), filter, count, word-count, ..."),
        "fetch": ("4MiB", "Consumers' chunk size, or a multiple of the producers' like 8x. Not for push."),
        "record": ("100", "Bytes of a record."),
        "rate": ("0", "Records per second that the producers keep to; 0: as many as can be."),
        "batch": ("50MB", "What a micro-batch reads at most; more if two seconds of reading are more."),
        "memory": (_ample(6), "Each broker's memory budget: slow consumers must not fall out of it."),
    }
    defaults.setdefault("quick_memory", _ample(3))
    return tuple(
        Parameter(name, defaults.get(name, default), text, quick=defaults.get(f"quick_{name}"))
        for name, (default, text) in about.items()
    )


class Colocation(Experiment):
    ways: ClassVar[dict[str, Way]] = PUSH_PULL_NATIVE
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("producers_records_per_second", "records/s", Better.MORE),
        Metric("consumers_records_per_second", "records/s", Better.MORE),
        Metric("broker_cpu_us_per_record", "us", Better.LESS),
        Metric("pushed_share", "of what was read", Better.MORE),
    )
    contenders = tuple(PUSH_PULL_NATIVE)
    baseline: ClassVar[str | None] = "pull"
    plots = (
        Plot(
            ("producers_records_per_second", "consumers_records_per_second"), along="chunk", panels="clients"
        ),
    )
    text: ClassVar[bool] = False
    seconds = 4.0
    repeat = 1
    quick_seconds = 2.0
    quick_repeat = 1

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._servers: dict[tuple[str, int], Server] = {}
        self._spark: SparkProcess | None = None
        self._warm: set[tuple[str, str]] = set()
        """(contender, query)"""
        self._rates: dict[tuple[str, str], float] = {}
        self._begun: set[str] = set()
        self._kafka_warm: list[Variant] = []
        alone = all(way.consumer is None for way in self.ways.values())
        together = (rig.load_cpus, rig.load_cpus)
        self._producer_cpus, self._consumer_cpus = together if alone else rig.roles()

    def variants(self) -> Sequence[Variant]:
        names = ("query", "partitions", "clients", "chunk")
        swept = {name: self.options.texts(name) for name in names}
        shown = [name for name in names if name in ("clients", "chunk") or len(swept[name]) > 1]
        every = itertools.product(*(swept[name] for name in shown))
        return [dict(zip(shown, values, strict=True)) for values in every]

    def start(self, contender: str) -> None:
        way = self.ways[contender]
        if way.consumer in SPARK:
            if self._spark is None:
                slots = max(map(int, self.options.texts("clients")))
                self._spark = SparkProcess(self.rig, max(2, slots), self._consumer_cpus)
            missing = self._spark.without_kafka()
            if SPARK[way.consumer][0] == "kafka" and missing:
                raise CannotStart(missing)
        if (way.broker, way.replication) not in self._servers:
            self._start_server(way)

    def _start_server(self, way: Way) -> None:
        budget = parse_size(self.options.text("memory"))
        server = replicas.make(way.broker, self.rig, budget, way.replication)
        server.start()
        for count in map(int, self.options.texts("partitions")):
            kafka = way.broker == "kafka"
            kept = _KAFKA_KEPT if kafka else int(budget * _KEPT / len(self.options.texts("partitions")))
            configs = {"retention.bytes": str(kept // count)} | (_KAFKA_SEGMENT if kafka else {})
            server.create_topic(_topic(count), count, configs, way.replication)
            # Every page of ours once, for fresh ones are dear; Kafka's until its code is compiled. It is what
            # consumers are warmed up with, too.
            load = Load(
                _topic(count), count, "64KiB", record=self.options.number("record"), text=self._text()
            )
            fill(server, load, _KAFKA_WARM if kafka else kept)
        self._servers[way.broker, way.replication] = server

    def warm_up(self, contender: str, variant: Variant) -> None:
        """Spark gets faster for a while: once for each contender and query, and with every CPU there is,
        for nobody else has anything to do yet and the JVM has much to compile."""
        way, pair = self.ways[contender], (contender, self._value(variant, "query"))
        if way.broker == "kafka":
            self._warm_kafka(contender, variant)
        if self._spark is not None and way.consumer in SPARK and pair not in self._warm:
            self._warm.add(pair)
            seconds = _QUICK_WARM_SECONDS if self.options.quick else _WARM_SECONDS
            server, reading = self._server(contender), self._reading(contender, variant)
            with self._spark.process.also_on(self.rig.server_cpus):
                warm_up(self._spark, server, reading, way.consumer, seconds)

    def _warm_kafka(self, contender: str, variant: Variant) -> None:
        """Producers alone, until what a request costs the broker stands still: it compiles what it runs, and
        what consumers take from producers is told by what it takes in without them."""
        if variant in self._kafka_warm:
            return
        least = 2 if self._kafka_warm or self.options.quick else _KAFKA_LOOKS
        self._kafka_warm.append(variant)
        server, load = self._server(contender), self._load(contender, variant)

        def cost() -> float:
            figures = measured_load(server, load, _KAFKA_LOOK_SECONDS, self._producer_cpus)
            return figures["cpu_us_per_request"]

        most = _KAFKA_QUICK_LOOKS if self.options.quick else _KAFKA_MOST_LOOKS
        until_steady(cost, _KAFKA_STEADY, least=least, most=most)

    def _rate_all(self, variant: Variant) -> None:
        """How fast Spark is alone, which its batches are made for. When all are warm, and not one by one:
        the first would have smaller batches than the others."""
        for contender, query in sorted(self._warm - self._rates.keys()):
            self._rates[contender, query] = self._rate(contender, variant)

    def _rate(self, contender: str, variant: Variant) -> float:
        way, reading = self.ways[contender], self._reading(contender, variant)
        server = self._server(contender)
        seconds = _QUICK_RATED_SECONDS if self.options.quick else _RATED_SECONDS

        def measure(batch: int) -> float:
            assert self._spark is not None
            assert way.consumer is not None
            return warm_up(self._spark, server, reading._replace(batch=batch), way.consumer, seconds)

        return rate_in_batches_of(_BATCH_SECONDS, measure, reading.batch)

    def measure(self, contender: str, variant: Variant) -> Figures:
        self._rate_all(variant)
        # Ours is up to 1.7 times slower than the next, producers alone too: most likely memory behind what
        # retention keeps, that nobody has touched yet. Kafka compiles what each kind of client makes it do.
        way = self.ways[contender]
        begun = contender if way.broker == "kafka" else way.broker
        if begun not in self._begun:
            self._begun.add(begun)
            self._sample(contender, variant)
        return self._sample(contender, variant)

    def _sample(self, contender: str, variant: Variant) -> Figures:
        seconds = self.options.seconds
        way = self.ways[contender]
        server = self._server(contender)
        reading, load = self._reading(contender, variant), self._load(contender, variant)
        consumers = self._consumers(way, server, reading)
        before = server.cpu_seconds()
        report = load_report(
            start_load(server, load, seconds + _FIRST_SECONDS, self._producer_cpus), seconds + _FIRST_SECONDS
        )
        end = time.time()
        spent = server.cpu_seconds() - before
        tallies = consumers.stop(end)
        if isinstance(server, Replicated):
            server.check(reading.topic)
        start = end - report["seconds"] + _FIRST_SECONDS
        figures: Figures = {
            "producers_records_per_second": report["median_records_per_second"],
            "broker_cpu_us_per_record": 1e6 * spent / report["records"],
            "broker_cpu_share": spent / report["seconds"],
            "produced": report["records"],
        }
        if tallies:
            figures["consumers_records_per_second"] = median_per_second(tallies, start, end)
            figures["consumed"] = sum(tally.at(end) for tally in tallies)
        if self._spark is not None and way.consumer in SPARK:
            figures["pushed"] = self._spark.pushed()
            if way.consumer == "push":  # of the others it is 0, which nothing can be divided by
                figures["pushed_share"] = figures["pushed"]
            figures["alone_records_per_second"] = self._rates[contender, reading.query]
        return figures

    def versions(self) -> dict[str, str]:
        return {server.name: server.version for server in self._servers.values()}

    def _consumers(self, way: Way, server: Server, reading: Reading) -> Consumers:
        if way.consumer is None:
            return NoConsumers()
        if way.consumer == "native":
            return NativeConsumers(server, reading, self._consumer_cpus)
        assert self._spark is not None
        return SparkConsumers(self._spark, server, reading, way.consumer)

    def _server(self, contender: str) -> Server:
        way = self.ways[contender]
        return self._servers[way.broker, way.replication]

    def _load(self, contender: str, variant: Variant) -> Load:
        partitions = int(self._value(variant, "partitions"))
        return Load(
            _topic(partitions),
            partitions,
            variant["chunk"],
            producers=int(variant["clients"]),
            record=self.options.number("record"),
            rate=float(self.options.text("rate")),
            acks="all" if self.ways[contender].replication > 1 else "1",
            text=self._text(),
        )

    def _reading(self, contender: str, variant: Variant) -> Reading:
        query, record = self._value(variant, "query"), self.options.number("record")
        least = parse_size(self.options.text("batch")) // record
        fetch = self.options.text("fetch")
        multiple = fetch.removesuffix("x")
        chunk = parse_size(variant["chunk"])
        partitions = int(self._value(variant, "partitions"))
        return Reading(
            _topic(partitions),
            partitions,
            int(variant["clients"]),
            int(multiple) * chunk if multiple != fetch else parse_size(fetch),
            record,
            max(least, int(_BATCH_SECONDS * self._rates.get((contender, query), 0.0))),
            query,
        )

    def _text(self) -> str | None:
        return self.options.text("text") if self.text else None

    def _value(self, variant: Variant, name: str) -> str:
        return variant.get(name) or self.options.text(name)


def _topic(partitions: int) -> str:
    return f"of-{partitions}"
