"""kill -9 of the broker under load: nothing acknowledged is lost, nothing is repeated, order is kept."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness import BrokerProcess, promised

ROUNDS = int(os.environ.get("KILL_ROUNDS", "10"))
PARTITIONS = 4


def make_topic(address: str, name: str, configs: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, config=configs or {})]).values():
        future.result(30)


def read_all(address: str, topic: str) -> dict[int, list[bytes]]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[bytes]] = defaultdict(list)
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(10)
        assert message is not None, f"partitions {set(range(PARTITIONS)) - ended} gave nothing for 10 s"
        error = message.error()
        if error is None:
            found[message.partition()].append(message.value())
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            raise AssertionError(error)
    consumer.close()
    return found


def test_acknowledged_records_survive_kill_9_under_load_once_and_in_order(tmp_path: Path) -> None:
    chance = random.Random(7)
    acknowledged: dict[int, list[bytes]] = defaultdict(list)
    failed: list[str] = []
    stop = threading.Event()

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(str(error))
        else:
            acknowledged[message.partition()].append(message.value())

    with BrokerProcess(tmp_path / "broker", memory="256MiB") as broker:
        broker.start()
        make_topic(broker.address, "t", {"segment.bytes": "1048576"})
        producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

        def produce() -> None:
            number = 0
            while not stop.is_set():
                value = b"%010d" % number + b"." * (number % 200)
                try:
                    producer.produce("t", value, partition=number % PARTITIONS, on_delivery=on_delivery)
                    number += 1
                except BufferError:
                    producer.poll(0.05)
                producer.poll(0)
                if number % 200 == 0:
                    time.sleep(0.001)

        thread = threading.Thread(target=produce, daemon=True)
        thread.start()
        for _ in range(ROUNDS):
            before = sum(map(len, acknowledged.values()))
            deadline = time.monotonic() + 30
            while sum(map(len, acknowledged.values())) < before + 500:
                assert time.monotonic() < deadline, f"no progress: {failed[:3]}\n{broker.log_text()[-2000:]}"
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.3))
            broker.kill()
            broker.start()
        stop.set()
        thread.join(30)
        assert producer.flush(60) == 0
        assert failed == []
        found = read_all(broker.address, "t")
        total = 0
        for partition in range(PARTITIONS):
            sent = acknowledged[partition]
            assert sent == sorted(sent), "librdkafka reports deliveries in order"
            promised(found[partition] == sent, f"partition {partition} is not what was acknowledged")
            total += len(sent)
        assert total > 500 * ROUNDS
        assert broker.stop() == 0


def test_acknowledged_records_of_a_disk_topic_survive_loss_of_memory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        broker.start()
        make_topic(broker.address, "safe", {"durability": "disk"})
        delivered: dict[int, list[bytes]] = defaultdict(list)

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            assert error is None
            delivered[message.partition()].append(message.value())

        producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True, "log_level": 0})
        for number in range(2000):
            producer.produce("safe", b"%d" % number, partition=number % PARTITIONS, on_delivery=on_delivery)
        assert producer.flush(30) == 0
        broker.kill()
        broker.lose_memory()
        broker.start()
        promised(read_all(broker.address, "safe") == delivered, "the log is not what was acknowledged")


def test_a_broker_that_is_told_to_stop_does_so_within_5_seconds_with_everything_on_disk(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        broker.start()
        make_topic(broker.address, "t")
        producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
        for number in range(20_000):
            producer.produce("t", b"%d" % number * 20, partition=number % PARTITIONS)
            producer.poll(0)
        assert producer.flush(30) == 0
        started = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - started < 5
        broker.lose_memory()
        broker.start()
        found = sum(map(len, read_all(broker.address, "t").values()))
        promised(found == 20_000, f"{found} of 20,000 are there")
