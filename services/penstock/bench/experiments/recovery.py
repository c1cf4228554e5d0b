"""Recovery: from kill -9 to the first answers, with gigabytes in memory and with none.

The clock starts with the new process. `empty` is the same program with nothing to bring back: what both
take is Python and its imports, what `full` takes more is the log.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Final

from penstock.bench.experiment import Better, Experiment, Figures, Goal, Metric, Options, Parameter, Variant
from penstock.bench.load import Load, fill
from penstock.bench.puller import Puller
from penstock.bench.rig import ProcessFailed, Rig
from penstock.bench.servers import PenstockServer
from penstock.load.chunks import ChunkRequest, make_chunk
from penstock.wire.errors import ErrorCode
from penstock.wire.records import Compression

_TOPIC: Final = "recovery"
_SLACK: Final = 256 << 20
_RESERVE: Final = 1.15
"""The broker keeps a part of its budget free, by evicting: all of the data must stay in memory."""
_ANSWER_SECONDS: Final = 60.0
_LENGTH: Final = struct.Struct(">i")


class Subject(Experiment):
    about = "kill -9 to the first acknowledged produce, the first fetch and the ready line"
    parameters = (
        Parameter("gigabytes", "10", "How much is in memory when the broker is killed.", quick="1"),
        Parameter("partitions", "8", "Of the topic."),
        Parameter("chunk", "16KiB", "Size of its record batches."),
    )
    metrics = (
        Metric("first_produce_seconds", "s", Better.LESS),
        Metric("first_fetch_seconds", "s", Better.LESS),
        Metric("ready_seconds", "s", Better.LESS),
        Metric("import_seconds", "s", Better.LESS),
        Metric("recovered_gigabytes", "GB", Better.MORE),
    )
    contenders = ("full", "empty")
    baseline = "empty"
    goals = (Goal("first_produce_seconds", "full", 1.0), Goal("first_fetch_seconds", "full", 1.0))
    repeat = 5
    quick_repeat = 3

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._servers: dict[str, PenstockServer] = {}
        self._written: dict[str, int] = {}

    def variants(self) -> Sequence[Variant]:
        return [{"gigabytes": self.options.text("gigabytes")}]

    def start(self, contender: str) -> None:
        wanted = int(float(self.options.text("gigabytes")) * 1e9) if contender == "full" else 0
        server = PenstockServer(self.rig, int(wanted * _RESERVE) + _SLACK)
        server.start()
        load = Load(_TOPIC, self.options.number("partitions"), self.options.text("chunk"))
        server.create_topic(_TOPIC, load.partitions, {})
        self._written[contender] = fill(server, load, wanted) if wanted else 0
        self._servers[contender] = server
        _first_produce(server, load)  # so that a fetch finds something in the empty one too

    def measure(self, contender: str, variant: Variant) -> Figures:
        server = self._servers[contender]
        load = Load(_TOPIC, self.options.number("partitions"), self.options.text("chunk"))
        server.process.kill()
        process = server.spawn()
        produced = _first_produce(server, load) - process.started
        fetched = _first_fetch(server) - process.started
        ready = process.wait_for_line("^ready:", _ANSWER_SECONDS)
        spent = process.cpu_seconds()  # before anything else runs on its CPU
        return {
            "first_produce_seconds": produced,
            "first_fetch_seconds": fetched,
            "ready_seconds": ready,
            "import_seconds": self._import_seconds(),
            "recovered_gigabytes": self._written[contender] / 1e9,
            "broker_cpu_seconds": spent,
        }

    def _import_seconds(self) -> float:
        """A Python that only imports what the broker does, on the broker's CPU."""
        child = self.rig.spawn(
            "imports",
            [sys.executable, "-c", "import uvloop, penstock.cli.main, penstock.broker.server"],
            server=True,
        )
        child.finish(_ANSWER_SECONDS)
        return time.perf_counter() - child.started


def _first_produce(server: PenstockServer, load: Load) -> float:
    """When a chunk for every partition was acknowledged."""
    chunk, records = make_chunk(1024, 100, Compression.NONE)
    request = ChunkRequest(_TOPIC, range(load.partitions), chunk, records, acks=1)
    frame = request.stamped(1, time.time_ns() // 1_000_000)
    with _connect(server) as connection:
        connection.sendall(frame)
        answer = connection.makefile("rb")
        size = answer.read(_LENGTH.size)
        answered = time.perf_counter()
        refused = request.first_error(bytearray(size + answer.read(_LENGTH.unpack(size)[0])), 0)
    if refused is not None:
        raise ProcessFailed(f"partition {refused[0]} refused its chunk: {ErrorCode(refused[1]).name}")
    return answered


def _first_fetch(server: PenstockServer) -> float:
    """When records came out of partition 0, from its beginning."""
    puller = Puller(server.address, _TOPIC, {0: 0})
    pulled = puller.pull()
    answered = time.perf_counter()
    puller.close()
    if not pulled.records:
        raise ProcessFailed("the broker answered a fetch with nothing")
    return answered


def _connect(server: PenstockServer) -> socket.socket:
    """As soon as somebody listens."""
    deadline = time.perf_counter() + _ANSWER_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", server.port), _ANSWER_SECONDS)
        except ConnectionRefusedError:
            if not server.process.running or time.perf_counter() > deadline:
                raise ProcessFailed(
                    f"the broker did not come back: {server.process.output[-1000:]}"
                ) from None
            time.sleep(0.001)
