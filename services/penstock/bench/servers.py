"""The brokers that are measured, ours and Apache Kafka's, behind one face: an address and a process."""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from penstock import __version__
from penstock.bench import kafka
from penstock.bench.experiment import CannotStart
from penstock.bench.rig import PENSTOCK, Child, ProcessFailed, Rig, free_port

READY_SECONDS: Final = 60.0


class Server(ABC):
    """A broker that runs. Its topics are made with our own command line, which speaks Kafka's protocol."""

    name: str
    version: str
    process: Child

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.port = free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @abstractmethod
    def start(self) -> None: ...

    @property
    def processes(self) -> tuple[Child, ...]:
        """All that the broker consists of; its replicas too."""
        return (self.process,)

    def cpu_seconds(self) -> float:
        return sum(process.cpu_seconds() for process in self.processes)

    def create_topic(
        self,
        topic: str,
        partitions: int,
        configs: Mapping[str, str],
        replication: int = -1,
        *,
        one_leads: bool = False,
    ) -> None:
        """Its leaders are spread over the brokers, unless the first is to lead every partition."""
        settings = [part for pair in configs.items() for part in ("-c", "=".join(pair))]
        command = [*PENSTOCK, "topic", "create", topic, "-p", str(partitions), "-b", self.address]
        brokers = ["--on", ",".join(map(str, range(1, replication + 1)))] if one_leads else []
        self.rig.run("topic", [*command, "--replication", str(replication), *brokers, *settings])

    def delete_topic(self, topic: str) -> None:
        self.rig.run("topic", [*PENSTOCK, "topic", "delete", topic, "-b", self.address])


class PenstockServer(Server):
    name = "penstock"
    version = __version__

    def __init__(
        self, rig: Rig, memory: int, options: Sequence[str] = (), cpus: frozenset[int] | None = None
    ) -> None:
        super().__init__(rig)
        self._cpus = cpus
        self.memory = memory
        self._options = options
        self.data = rig.directory("data")
        self.shm = rig.directory("shm", in_memory=True)
        self._http = free_port()

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self._http}"

    def spawn(self) -> Child:
        """Start the process and don't wait for it."""
        self.process = self.rig.spawn(
            self.name,
            [
                *(*PENSTOCK, "broker", "--listen", self.address, "--http", f"127.0.0.1:{self._http}"),
                *("--data-dir", str(self.data), "--shm-dir", str(self.shm), "--memory", str(self.memory)),
                *("--log-level", "warning"),
                *self._options,
            ],
            server=True,
            cpus=self._cpus,
        )
        return self.process

    def start(self) -> None:
        try:
            self.spawn().wait_for_line("^ready:", READY_SECONDS)
        except ProcessFailed as error:
            raise CannotStart(str(error)) from None


class KafkaServer(Server):
    """KRaft, one process a node, its log on tmpfs as ours is. The first node controls, whether or not it
    serves clients too."""

    name = "kafka"
    version = kafka.VERSION

    def __init__(
        self,
        rig: Rig,
        controller: KafkaServer | None = None,
        node: int = 1,
        *,
        serves: bool = True,
        cpus: frozenset[int] | None = None,
    ) -> None:
        super().__init__(rig)
        self.node = node
        self._serves = serves
        self._cpus = cpus
        self._controller: int = controller.node if controller else node
        self.controller_port: int = controller.controller_port if controller else free_port()
        self.cluster_id: str = controller.cluster_id if controller else kafka.new_cluster_id()
        directory = rig.directory("kafka", in_memory=True)
        self.logs = directory / "logs"
        self._settings = directory / "server.properties"
        self._formatted = False

    def start(self) -> None:
        """The first time with an empty log; later, after its end, with what it has."""
        try:
            if not self._formatted:
                self._format()
            self.spawn()
            self._wait()
        except (kafka.NoKafka, ProcessFailed) as error:
            raise CannotStart(str(error)) from None

    def _format(self) -> None:
        self._settings.write_text(
            kafka.settings(
                self.port,
                self.controller_port,
                self.logs,
                node=self.node,
                controller=self._controller,
                serves=self._serves,
            )
        )
        arguments = ("format", "-t", self.cluster_id, "-c", str(self._settings))
        self.rig.run("kafka-format", kafka.main("kafka.tools.StorageTool", *arguments))
        self._formatted = True

    def spawn(self) -> Child:
        """Start the process and don't wait for it."""
        command = kafka.main("kafka.Kafka", str(self._settings), options=kafka.JVM)
        self.process = self.rig.spawn(f"{self.name}-{self.node}", command, server=True, cpus=self._cpus)
        return self.process

    def _wait(self) -> None:
        """It is up when it says which topics it has; an open port alone is too early, but all that a
        controller has."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            if not self.process.running or time.monotonic() > deadline:
                raise ProcessFailed(f"Kafka did not start: {self.process.output[-1000:].strip()}")
            try:
                port = self.port if self._serves else self.controller_port
                socket.create_connection(("127.0.0.1", port), 1).close()
                if self._serves:
                    self.rig.run("kafka-ask", [*PENSTOCK, "topic", "list", "-b", self.address])
                return
            except (OSError, ProcessFailed):
                time.sleep(0.2)


def make(name: str, rig: Rig, memory: int) -> Server:
    return KafkaServer(rig) if name == KafkaServer.name else PenstockServer(rig, memory)
