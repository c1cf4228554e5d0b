"""Brokers with replicas: two of ours on an etcd, or two of Apache Kafka's, with the face of one server.

Used by experiments that sweep the replication factor. All brokers have the servers' CPUs together.
"""

from __future__ import annotations

import shutil
import time
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

from penstock.bench import servers
from penstock.bench.experiment import CannotStart
from penstock.bench.rig import Child, ProcessFailed, Rig, free_port
from penstock.bench.servers import KafkaServer, PenstockServer, Server

PATIENT: Final = 3000
"""Milliseconds of silence until a broker of ours is suspected. Brokers are loaded to the brim on one CPU,
and leaders and backups should stay what they are; Kafka waits for longer by itself."""


class Replicated(Server):
    """Several brokers, numbered from 1; the first one's address leads to all."""

    def __init__(self, rig: Rig, brokers: Sequence[Server]) -> None:
        super().__init__(rig)
        self.brokers = brokers
        self.name, self.version, self.port = brokers[0].name, brokers[0].version, brokers[0].port

    @property
    def processes(self) -> tuple[Child, ...]:
        return tuple(broker.process for broker in self.brokers)

    def start(self) -> None:
        for broker in self.brokers:
            broker.start()
        self.process = self.brokers[0].process
        deadline = time.monotonic() + servers.READY_SECONDS
        while len(self._metadata().brokers) < len(self.brokers):
            if time.monotonic() > deadline:
                raise CannotStart(f"{self.name}'s brokers did not find each other")
            time.sleep(0.1)

    def check(self, topic: str, *, one_leads: bool = False) -> None:
        """Raise unless all replicas are in sync, and the first broker leads if it should: what was measured
        was something else then."""
        for number, partition in self._metadata(topic).topics[topic].partitions.items():
            if len(partition.isrs) < len(partition.replicas):
                raise ProcessFailed(f"partition {number} has lost a backup: in sync is {partition.isrs}")
            if one_leads and partition.leader != 1:
                raise ProcessFailed(f"partition {number} is led by broker {partition.leader}")

    def _metadata(self, topic: str | None = None) -> Any:
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": self.address})
        return client.list_topics(topic, timeout=10) if topic else client.list_topics(timeout=10)


class KafkaPair:
    """Apache Kafka's brokers 1 and 2 beside a controller that serves nobody, as etcd stands beside ours, and
    one topic with a replica on each: whichever leads can be lost, and the controller stays."""

    def __init__(self, rig: Rig, *, cpus: frozenset[int] | None = None) -> None:
        self._controller = KafkaServer(rig, node=3, serves=False, cpus=cpus)
        self._brokers = [KafkaServer(rig, self._controller, node, cpus=cpus) for node in (1, 2)]
        self._topic = ""

    def start(self, topic: str) -> None:
        self._controller.start()
        pair = Replicated(self._controller.rig, self._brokers)
        pair.start()
        self._topic = topic
        pair.create_topic(topic, 1, {}, 2, one_leads=True)
        self.wait_in_sync(2)

    def broker(self, number: int) -> KafkaServer:
        return self._brokers[number - 1]

    def leader(self) -> int:
        state = self._state()
        return -1 if state is None else int(state.leader)

    def wait_in_sync(self, count: int) -> None:
        deadline = time.monotonic() + servers.READY_SECONDS
        while (state := self._state()) is None or len(state.isrs) != count:
            if time.monotonic() > deadline:
                raise ProcessFailed(f"Kafka has not {count} in sync within {servers.READY_SECONDS:.0f} s")
            time.sleep(0.1)

    def _state(self) -> Any:
        """The partition, as a broker that answers knows it; None if it doesn't yet."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": ",".join(broker.address for broker in self._brokers)})
        try:
            return client.list_topics(self._topic, timeout=10).topics[self._topic].partitions.get(0)
        except KafkaException:
            return None


class Etcd:
    """A single etcd, its data on tmpfs: it is not what is measured."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._port, self._peer = free_port(), free_port()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        if shutil.which("etcd") is None:
            raise CannotStart("there is no etcd here (Debian: etcd-server)")
        peer = f"http://127.0.0.1:{self._peer}"
        directory = self._rig.directory("etcd", in_memory=True)
        command = [
            *("etcd", "--name", "e", "--data-dir", str(directory / "data"), "--unsafe-no-fsync"),
            *("--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"e={peer}"),
        ]
        process = self._rig.spawn("etcd", command, server=True)
        deadline = time.monotonic() + servers.READY_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.endpoint}/health", timeout=1) as answer:
                    if b"true" in answer.read():
                        return
            except OSError:
                if not process.running or time.monotonic() > deadline:
                    raise ProcessFailed(f"etcd did not start: {process.output[-500:]}") from None
                time.sleep(0.05)


def make(
    name: str,
    rig: Rig,
    memory: int,
    count: int,
    *,
    cpus: frozenset[int] | None = None,
    suspicion_ms: int | None = PATIENT,
) -> Server:
    """So many brokers, each with so much memory; started by its `start`. CPUs other than the servers', and
    suspicion (None: as by default), are for our own brokers only."""
    if name == PenstockServer.name and count == 1:
        return PenstockServer(rig, memory, cpus=cpus)
    if count == 1:
        return servers.make(name, rig, memory)
    if name == KafkaServer.name:
        first = KafkaServer(rig)
        return Replicated(rig, [first, *(KafkaServer(rig, first, node) for node in range(2, count + 1))])
    etcd = Etcd(rig)
    etcd.start()
    options: tuple[str, ...] = ()
    if suspicion_ms is not None:
        settings = rig.directory("settings") / "penstock.toml"
        settings.write_text(f"suspicion_ms = {suspicion_ms}\n")
        options = ("--config", str(settings))
    brokers = [
        PenstockServer(
            rig,
            memory,
            (
                *("--broker-id", str(number), "--cluster", etcd.endpoint),
                *("--replication-listen", f"127.0.0.1:{free_port()}"),
                *options,
            ),
            cpus,
        )
        for number in range(1, count + 1)
    ]
    return Replicated(rig, brokers)
