"""What a deployment relies on: a second door with its own addresses, and a readiness that can be trusted."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from cluster import QUIET, Cluster
from etcd import needs_etcd
from harness import BrokerProcess, eventually, free_port

pytestmark = needs_etcd


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        for broker in cluster.brokers.values():
            broker.environment["PENSTOCK_EXTERNAL_LISTEN"] = f"127.0.0.1:{free_port()}"
        yield cluster.start()


def readiness(broker: BrokerProcess) -> tuple[bool, str]:
    try:
        with urllib.request.urlopen(f"{broker.http}/readyz", timeout=10) as answer:
            body = answer.read()
    except urllib.error.HTTPError as error:
        body = error.read()
    found = json.loads(body)
    return found["ready"], found["reason"] or ""


def addresses(bootstrap: str) -> set[str]:
    found = AdminClient({"bootstrap.servers": bootstrap, **QUIET}).list_topics(timeout=10).brokers
    return {f"{broker.host}:{broker.port}" for broker in found.values()}


def test_each_door_tells_its_own_addresses_of_all_brokers(cluster: Cluster) -> None:
    doors = {b.environment["PENSTOCK_EXTERNAL_LISTEN"] for b in cluster.brokers.values()}
    inside = {b.address for b in cluster.brokers.values()}
    for door in doors:
        assert addresses(door) == doors
    for door in inside:
        assert addresses(door) == inside


def test_clients_of_the_second_door_produce_and_consume_through_it(cluster: Cluster) -> None:
    cluster.create("orders", 4, 2)
    door = cluster.brokers[1].environment["PENSTOCK_EXTERNAL_LISTEN"]
    producer = Producer({"bootstrap.servers": door, "enable.idempotence": True, **QUIET})
    for number in range(100):
        producer.produce("orders", str(number), partition=number % 4)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": door, "group.id": "outside", **QUIET})
    consumer.assign([TopicPartition("orders", partition, 0) for partition in range(4)])
    found = {int(record.value() or b"") for record in consumer.consume(100, timeout=30)}
    consumer.commit(asynchronous=False)  # the coordinator was found through the door too
    consumer.close()
    assert found == set(range(100))


def test_a_door_that_is_advertised_otherwise_is_told_so(tmp_path: Path) -> None:
    door = f"127.0.0.1:{free_port()}"
    environment = {
        "PENSTOCK_EXTERNAL_LISTEN": door,
        "PENSTOCK_EXTERNAL_ADVERTISE": "kafka.example:30192",
    }
    with BrokerProcess(tmp_path, environment=environment) as broker:
        broker.start()
        assert addresses(door) == {"kafka.example:30192"}
        assert addresses(broker.address) == {broker.address}


def test_a_broker_out_of_touch_with_etcd_is_not_ready(cluster: Cluster) -> None:
    broker = cluster.brokers[1]
    eventually(lambda: readiness(broker)[0])
    cluster.etcd.kill()
    eventually(lambda: not readiness(broker)[0], 20)
    assert "etcd" in readiness(broker)[1]
    cluster.etcd.start()
    eventually(lambda: readiness(broker)[0], 20)


def test_a_broker_that_came_back_is_ready_once_it_is_in_sync(cluster: Cluster) -> None:
    """Who restarts brokers one after the other waits for this: the next one may hold the only other copy."""
    cluster.create("orders", 8, 2)
    broker = cluster.brokers[2]
    broker.kill()
    broker.lose_memory()
    shutil.rmtree(broker.data_dir)
    cluster.in_sync("orders", 1)
    producer = Producer({"bootstrap.servers": cluster.brokers[1].address, "linger.ms": 5, **QUIET})
    for number in range(2000):
        producer.produce("orders", b"." * 10_000, partition=number % 8)
    assert producer.flush(60) == 0
    broker.start()
    reasons = []

    def ready() -> bool:
        is_ready, reason = readiness(broker)
        reasons.append(reason)
        return is_ready

    eventually(ready, 60)
    members = [{broker for broker, _ in state["in_sync"]} for state in cluster.partitions("orders").values()]
    assert members == [{1, 2}] * 8, reasons
