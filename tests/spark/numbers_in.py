"""A stream of numbers whose every acknowledged one is known: what went in, to compare with what came out."""

from __future__ import annotations

import threading
import time

from confluent_kafka import Producer
from topics import Topic


class Numbers:
    """Produces numbers, and remembers those that were acknowledged."""

    def __init__(self, topic: Topic, *, idempotent: bool = True) -> None:
        self.topic, self.idempotent = topic, idempotent
        self.acknowledged: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Numbers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No more; whatever was sent is acknowledged by then."""
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        settings = {
            "bootstrap.servers": self.topic.servers,
            "enable.idempotence": self.idempotent,
            "linger.ms": 2,
        }
        producer = Producer({**settings, "log_level": 0})
        number = 0
        while not self._stop.is_set():
            sent = number
            producer.produce(
                self.topic.name,
                str(number),
                partition=number % self.topic.partitions,
                on_delivery=lambda error, _m, n=sent: None if error else self.acknowledged.append(n),
            )
            producer.poll(0)
            number += 1
            time.sleep(0.001)
        producer.flush(60)
