"""Failover: how long nobody is served when a leader dies, or hangs, as clients see it.

An idempotent librdkafka producer with acks=all and a push reader, a partition with two replicas. A sample
is one failover: kill -9, SIGSTOP or a clean stop of the leader, the longest time around it without an
acknowledgement and without a record at the reader; then the broker comes back and everything is in sync
again. A client learns that a broker hangs from its own request timeout alone, so a short one is set here:
150 ms, which librdkafka looks at once a second.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

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
from penstock.bench.rig import ProcessFailed, Rig
from penstock.shm.places import Interrupted, NotLocal
from penstock.shm.reader import LogReader
from penstock.shm.subscribe import SubscribeFailed, subscribe

_TOPIC: Final = "failover"
_STEADY: Final = 1.0
_PATIENCE: Final = 60.0
_SILENCE: Final = 0.3
"""Seconds without a heartbeat after which the reader asks who leads."""


class Subject(Experiment):
    about = "pause of a producer and of a push reader when the leader is killed, hangs or stops"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("rate", "1000", "Records a second."),
        Parameter("timeout", "150", "The producer's request timeout, ms."),
    )
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("producer_pause_seconds", "s", Better.LESS),
        Metric("reader_pause_seconds", "s", Better.LESS),
    )
    contenders = ("kill", "hang", "stop")
    goals: ClassVar[tuple[Goal, ...]] = (
        Goal("producer_pause_seconds", "kill", 1.0),
        Goal("producer_pause_seconds", "hang", 1.0),
        Goal("producer_pause_seconds", "stop", 1.0),
    )
    repeat = 10
    quick_repeat = 3

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._pair: Pair | None = None
        self._writer: _Writer | None = None
        self._follower: _Follower | None = None

    def variants(self) -> Sequence[Variant]:
        return [{"replicas": "2"}]

    def start(self, contender: str) -> None:
        if self._pair is not None:
            return  # both are done to the same brokers
        everything = self.rig.server_cpus | self.rig.load_cpus
        pair = Pair(self.rig, 128 << 20, cpus=everything, suspicion_ms=None)
        pair.start(_TOPIC, 1, {})
        addresses = [pair.broker(number).address for number in (1, 2)]
        self._writer = _Writer(addresses, self.options.number("rate"), self.options.number("timeout"))
        self._follower = _Follower(addresses)
        self._writer.start()
        self._follower.start()
        self._pair = pair

    def measure(self, contender: str, variant: Variant) -> Figures:
        pair, writer, follower = self._pair, self._writer, self._follower
        assert pair is not None
        assert writer is not None
        assert follower is not None
        pair.wait_in_sync(2)
        _wait_for(writer, time.monotonic(), _STEADY)
        _wait_for(follower, time.monotonic(), _STEADY)
        victim = pair.broker(pair.leader())
        moment = time.monotonic()
        if contender == "kill":
            victim.process.kill()
        elif contender == "stop":
            victim.process.stop()
        else:
            os.kill(victim.process.pid, signal.SIGSTOP)
        try:
            _wait_for(writer, moment + 0.02, _STEADY)
            _wait_for(follower, moment + 0.02, _STEADY)
        finally:
            if contender == "hang":
                os.kill(victim.process.pid, signal.SIGCONT)
            else:
                victim.start()
        if writer.failed:
            raise ProcessFailed(f"the producer failed: {writer.failed[0]}")
        return {
            "producer_pause_seconds": _pause(writer.times, moment),
            "reader_pause_seconds": _pause(follower.times, moment),
        }


def _wait_for(client: _Writer | _Follower, moment: float, seconds: float) -> None:
    """Until it was served for so long since `moment`."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        since = next((t for t in client.times if t > moment), None)
        if since is not None and client.times[-1] - since > seconds:
            return
        if time.monotonic() > deadline:
            raise ProcessFailed(f"{client.name} was not served again within {_PATIENCE:.0f} s")
        time.sleep(0.02)


def _pause(times: Sequence[float], moment: float) -> float:
    """The longest gap that ends after `moment` and begins before, or soon after."""
    around = [t for t in times if t > moment - 1]
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
                "topic.metadata.refresh.fast.interval.ms": 50,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                # Else it has no connection but the leader's, and looks for another only once a second.
                "enable.sparse.connections": False,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        started, count = time.monotonic(), 0
        while True:
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
