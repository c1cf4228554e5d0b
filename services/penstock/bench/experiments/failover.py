"""Failover: how long nobody is served when a leader dies, or hangs, as clients see it.

An idempotent librdkafka producer with acks=all and a push reader, a partition with two replicas. A sample
is one failover: kill -9, SIGSTOP or a clean stop of the leader, the longest time around it without an
acknowledgement and without a record at the reader; then the broker comes back and everything is in sync
again. A client learns that a broker hangs from its own request timeout alone, so a short one is set here:
150 ms, which librdkafka looks at once a second.

The same is done to the leader of two Apache Kafka brokers with a controller of their own, with the same
producer; nobody can push there, so its reader is a plain librdkafka consumer that pulls. Kafka's timeouts
are its defaults: a broker is missed after 9 seconds, and two rounds are enough to see that. While the one
pair of brokers is measured, clients leave the other alone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

from penstock.bench import kafka
from penstock.bench.experiment import (
    Better,
    CannotStart,
    Experiment,
    Figures,
    Goal,
    Metric,
    Options,
    Parameter,
    Variant,
)
from penstock.bench.pair import Pair
from penstock.bench.replicas import KafkaPair
from penstock.bench.rig import ProcessFailed, Rig
from penstock.shm.places import Interrupted, NotLocal
from penstock.shm.reader import LogReader
from penstock.shm.subscribe import SubscribeFailed, subscribe

_TOPIC: Final = "failover"
_STEADY: Final = 1.0
_KAFKA_ROUNDS: Final = 2
_PATIENCE: Final = 60.0
_SILENCE: Final = 0.3
"""Seconds without a heartbeat after which the reader asks who leads."""
_EAGER: Final = {
    "topic.metadata.refresh.fast.interval.ms": 50,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    # Else it has no connection but the leader's, and looks for another only once a second.
    "enable.sparse.connections": False,
    "log_level": 0,
}
"""How librdkafka's clients look for who leads."""


class Subject(Experiment):
    about = "pause of a producer and of a reader when the leader is killed, hangs or stops"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("rate", "1000", "Records a second."),
        Parameter("timeout", "150", "The producer's request timeout, ms."),
    )
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("producer_pause_seconds", "s", Better.LESS),
        Metric("reader_pause_seconds", "s", Better.LESS),
    )
    contenders = ("kill", "hang", "stop", "kafka kill", "kafka hang")
    goals: ClassVar[tuple[Goal, ...]] = (
        Goal("producer_pause_seconds", "kill", 1.0),
        Goal("producer_pause_seconds", "hang", 1.0),
        Goal("producer_pause_seconds", "stop", 1.0),
        Goal("reader_pause_seconds", "kill", 1.0),
        Goal("reader_pause_seconds", "hang", 1.0),
    )
    repeat = 5
    quick_repeat = 3

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._sides: dict[str, _Side | CannotStart] = {}
        self._rounds: Counter[str] = Counter()

    def variants(self) -> Sequence[Variant]:
        return [{"replicas": "2"}]

    def start(self, contender: str) -> None:
        """Whatever is done to a kind of brokers is done to the same two."""
        kind, _ = _split(contender)
        if kind and self.options.quick and contender not in self.options.contenders:
            raise CannotStart("takes too long for a quick run")
        if kind not in self._sides:
            try:
                self._sides[kind] = self._kafka() if kind else self._penstock()
            except (CannotStart, ProcessFailed) as error:
                self._sides[kind] = CannotStart(str(error))
        side = self._sides[kind]
        if isinstance(side, CannotStart):
            raise side

    def _penstock(self) -> _Side:
        pair = Pair(self.rig, 128 << 20, cpus=self._everything(), suspicion_ms=None)
        pair.start(_TOPIC, 1, {})
        addresses = [pair.broker(number).address for number in (1, 2)]
        return self._side(pair, addresses, _Follower(addresses))

    def _kafka(self) -> _Side:
        pair = KafkaPair(self.rig, cpus=self._everything())
        pair.start(_TOPIC)
        addresses = [pair.broker(number).address for number in (1, 2)]
        return self._side(pair, addresses, _Consumer(addresses))

    def _side(self, pair: Pair | KafkaPair, addresses: Sequence[str], reader: _Follower | _Consumer) -> _Side:
        writer = _Writer(addresses, self.options.number("rate"), self.options.number("timeout"))
        writer.start()
        reader.start()
        return _Side(pair, writer, reader)

    def _everything(self) -> frozenset[int]:
        return self.rig.server_cpus | self.rig.load_cpus

    def measure(self, contender: str, variant: Variant) -> Figures:
        kind, deed = _split(contender)
        self._rounds[contender] += 1
        if kind and self._rounds[contender] > _KAFKA_ROUNDS:
            return {}  # it sits this round out
        side = self._sides[kind]
        assert isinstance(side, _Side)
        side.writer.resting = False
        try:
            return _fail_over(side, deed)
        finally:
            side.writer.resting = True

    def versions(self) -> dict[str, str]:
        return {"kafka": kafka.VERSION} if isinstance(self._sides.get("kafka"), _Side) else {}


class _Side(NamedTuple):
    """Two brokers, and the clients of theirs that are watched."""

    pair: Pair | KafkaPair
    writer: _Writer
    reader: _Follower | _Consumer


def _split(contender: str) -> tuple[str, str]:
    """Whose brokers (ours have no name), and what is done to the leader."""
    kind, _, deed = contender.rpartition(" ")
    return kind, deed


def _fail_over(side: _Side, deed: str) -> Figures:
    clients = (side.writer, side.reader)
    side.pair.wait_in_sync(2)
    for client in clients:
        _wait_for(client, time.monotonic(), _STEADY)
    leader = side.pair.leader()
    if leader < 1:
        raise ProcessFailed("nobody leads")
    victim = side.pair.broker(leader)
    moment = time.monotonic()
    if deed == "kill":
        victim.process.kill()
    elif deed == "stop":
        victim.process.stop()
    else:
        os.kill(victim.process.pid, signal.SIGSTOP)
    try:
        for client in clients:
            _wait_for(client, moment + 0.02, _STEADY)
    finally:
        if deed == "hang":
            os.kill(victim.process.pid, signal.SIGCONT)
        else:
            victim.start()
    if side.writer.failed:
        raise ProcessFailed(f"the producer failed: {side.writer.failed[0]}")
    return {
        "producer_pause_seconds": _pause(side.writer.times, moment),
        "reader_pause_seconds": _pause(side.reader.times, moment),
    }


def _wait_for(client: _Writer | _Follower | _Consumer, moment: float, seconds: float) -> None:
    """Until it was served for so long since `moment`."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        first = bisect_right(client.times, moment)
        if first < len(client.times) and client.times[-1] - client.times[first] > seconds:
            return
        if time.monotonic() > deadline:
            raise ProcessFailed(f"{client.name} was not served again within {_PATIENCE:.0f} s")
        time.sleep(0.02)


def _pause(times: Sequence[float], moment: float) -> float:
    """The longest gap that ends after `moment` and begins before, or soon after."""
    around = times[bisect_right(times, moment - 1) :]
    return max(b - a for a, b in itertools.pairwise(around) if b > moment and a < moment + 0.5)


class _Writer(threading.Thread):
    def __init__(self, addresses: Sequence[str], rate: int, timeout: int) -> None:
        super().__init__(daemon=True, name="the producer")
        try:
            from confluent_kafka import Producer
        except ImportError:
            raise CannotStart("needs confluent-kafka: pip install 'penstock[bench]'") from None
        self.times: list[float] = []
        self.failed: list[str] = []
        self.resting = True
        self._rate = rate
        self._producer = Producer(
            {
                "bootstrap.servers": ",".join(addresses),
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "message.timeout.ms": 120_000,
                "request.timeout.ms": timeout,
                "socket.timeout.ms": timeout,
                **_EAGER,
            }
        )

    def run(self) -> None:
        started, count = time.monotonic(), 0
        while True:
            if self.resting:
                self._producer.poll(0.05)
                started, count = time.monotonic(), 0
                continue
            with contextlib.suppress(BufferError):
                self._producer.produce(_TOPIC, b"." * 100, partition=0, on_delivery=self._delivered)
                count += 1
            self._producer.poll(0)
            ahead = started + count / self._rate - time.monotonic()
            if ahead > 0:
                self._producer.poll(ahead)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.times.append(time.monotonic())


class _Follower(threading.Thread):
    """Reads in the memory of whoever leads, and finds the next leader by itself."""

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__(daemon=True, name="the push reader")
        self.times: list[float] = []
        self._addresses = addresses
        self._offset = 0

    def run(self) -> None:
        while True:
            for address in self._addresses:
                with contextlib.suppress(SubscribeFailed, NotLocal, Interrupted):
                    self._follow(address)
            time.sleep(0.01)

    def _follow(self, address: str) -> None:
        subscription = subscribe(address, {_TOPIC: [0]}, timeout=0.3)
        starts = dict.fromkeys(subscription.places, self._offset)
        with LogReader.of(subscription, starts, silence=_SILENCE) as reader:
            for batch in reader.batches(copy=True):
                self._offset = batch.next_offset
                self.times.append(time.monotonic())


class _Consumer(threading.Thread):
    """Pulls, as librdkafka does it; for brokers that can't push."""

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__(daemon=True, name="the consumer")
        try:
            from confluent_kafka import Consumer, TopicPartition
        except ImportError:
            raise CannotStart("needs confluent-kafka: pip install 'penstock[bench]'") from None
        self.times: list[float] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": ",".join(addresses),
                "group.id": "failover",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 20,
                "socket.timeout.ms": 1100,  # a second more than a fetch may wait: the least it takes
                **_EAGER,
            }
        )
        self._consumer.assign([TopicPartition(_TOPIC, 0, 0)])

    def run(self) -> None:
        while True:
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.times.append(time.monotonic())
