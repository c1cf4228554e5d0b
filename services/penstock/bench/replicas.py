"""Brokers with replicas: two of ours on an etcd, or two of Apache Kafka's, with the face of one server.

Used by experiments that sweep the replication factor. All brokers have the servers' CPUs together.
"""

from __future__ import annotations

import shutil
import time
import urllib.request
from collections.abc import Sequence

from penstock.bench import servers
from penstock.bench.experiment import CannotStart
from penstock.bench.rig import Child, ProcessFailed, Rig, free_port
from penstock.bench.servers import KafkaServer, PenstockServer, Server


class Replicated(Server):
    """Several brokers; the first one's address leads to all."""

    def __init__(self, rig: Rig, brokers: Sequence[Server], etcd: Etcd | None = None) -> None:
        super().__init__(rig)
        self.brokers = brokers
        self.etcd = etcd
        self.name, self.version, self.port = brokers[0].name, brokers[0].version, brokers[0].port

    @property
    def processes(self) -> tuple[Child, ...]:
        return tuple(broker.process for broker in self.brokers)

    def start(self) -> None:
        for broker in self.brokers:
            broker.start()
        self.process = self.brokers[0].process


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
    options: Sequence[str] = (),
) -> Server:
    """So many brokers, each with so much memory; started by its `start`. CPUs other than the servers', and
    options, are for our own brokers only."""
    if name == PenstockServer.name and count == 1:
        return PenstockServer(rig, memory, cpus=cpus)
    if count == 1:
        return servers.make(name, rig, memory)
    if name == KafkaServer.name:
        first = KafkaServer(rig)
        return Replicated(rig, [first, *(KafkaServer(rig, first, node) for node in range(2, count + 1))])
    etcd = Etcd(rig)
    etcd.start()
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
    return Replicated(rig, brokers, etcd)
