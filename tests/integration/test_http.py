"""The broker over HTTP: what operators and Prometheus are promised, against a real broker."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from harness import PENSTOCK, BrokerProcess, eventually, free_port
from penstock.broker.metrics.readers import MAX_SERIES, ReaderTotals, reader_lag
from penstock.cli.kafka import Cluster
from penstock.cli.topic import create_topic
from penstock.shm.cursors import CursorFile, ReaderSlot
from penstock.shm.layout import SlotState
from penstock.shm.places import Edge
from penstock.shm.reader import LogReader
from penstock.shm.subscribe import subscribe
from scraping import Page, scrape


def get(broker: BrokerProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(broker.http + path, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def view(broker: BrokerProcess, path: str) -> Any:
    status, body = get(broker, path)
    assert status == 200, body
    return json.loads(body)


def metrics(broker: BrokerProcess) -> Page:
    return scrape(broker.http + "/metrics")


def metric(broker: BrokerProcess, name: str, **labels: str) -> float:
    return metrics(broker).of(name, **labels)


async def new_topic(broker: BrokerProcess, partitions: int = 1) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    async with Cluster(broker.address) as cluster:
        await create_topic(cluster, name, partitions, -1, {})
    return name


async def produce(broker: BrokerProcess, topic: str, values: list[bytes], **options: Any) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=broker.address, **options)
    await producer.start()
    try:
        for sent in [await producer.send(topic, value, partition=0) for value in values]:
            await sent
    finally:
        await producer.stop()


def test_the_ready_line_names_every_address(shared_broker: BrokerProcess) -> None:
    ready = next(line for line in shared_broker.log_text().splitlines() if line.startswith("ready:"))
    assert ready == (
        f"ready: kafka {shared_broker.address} http {shared_broker.http} "
        f"shm {shared_broker.memory_dir} data {shared_broker.data_dir}"
    )


def test_a_running_broker_is_alive_and_ready(shared_broker: BrokerProcess) -> None:
    assert view(shared_broker, "/healthz") == {"status": "alive"}
    assert view(shared_broker, "/readyz") == {"ready": True, "reason": None}


def test_the_root_lists_what_can_be_asked(shared_broker: BrokerProcess) -> None:
    paths = view(shared_broker, "/")["paths"]
    assert {"/healthz", "/readyz", "/metrics", "/v1/broker", "/v1/topics/{topic}", "/v1/readers"} <= set(
        paths
    )


def test_the_broker_tells_who_it_is_and_what_it_uses(shared_broker: BrokerProcess) -> None:
    broker = view(shared_broker, "/v1/broker")
    assert broker["broker_id"] == 1
    assert broker["kafka"] == shared_broker.address
    assert broker["http"] == shared_broker.http
    assert broker["ready"] is True
    assert broker["memory"]["budget"] == 256 << 20
    assert broker["memory"]["directory"] == str(shared_broker.memory_dir)
    assert broker["disk"]["failure"] is None
    assert broker["disk"]["free"] > 0


async def test_a_topic_shows_its_partitions_and_counts_what_came_in(shared_broker: BrokerProcess) -> None:
    topic = await new_topic(shared_broker, partitions=3)
    await produce(shared_broker, topic, [b"x" * 100] * 250)
    detail = view(shared_broker, f"/v1/topics/{topic}")
    assert [part["partition"] for part in detail["partitions"]] == [0, 1, 2]
    assert [part["high_watermark"] for part in detail["partitions"]] == [250, 0, 0]
    assert detail["records_in"] == 250
    assert detail["bytes_in"] == detail["log_bytes"] > 250 * 100
    summary = next(each for each in view(shared_broker, "/v1/topics") if each["topic"] == topic)
    assert summary == {key: value for key, value in detail.items() if key in summary}


@pytest.mark.parametrize("kind", ["topic", "group"])
def test_what_is_not_there_is_a_404_with_a_message(shared_broker: BrokerProcess, kind: str) -> None:
    status, body = get(shared_broker, f"/v1/{kind}s/nothing")
    assert status == 404
    assert json.loads(body)["detail"].startswith(f"there is no {kind} 'nothing'")


async def test_a_groups_lag_is_told_by_partition_and_in_all(shared_broker: BrokerProcess) -> None:
    topic = await new_topic(shared_broker, partitions=2)
    group = f"group-{uuid4().hex[:8]}"
    await produce(shared_broker, topic, [b"x"] * 30)
    consumer = AIOKafkaConsumer(bootstrap_servers=shared_broker.address, group_id=group, client_id="lagging")
    consumer.subscribe([topic])
    await consumer.start()
    try:
        while len(consumer.assignment()) < 2:
            await consumer.getmany(timeout_ms=50)
        await consumer.commit({TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 0})
        detail = view(shared_broker, f"/v1/groups/{group}")
    finally:
        await consumer.stop()
    assert detail["state"] == "Stable"
    assert detail["members"][0]["client_id"] == "lagging"
    assert detail["members"][0]["assignment"] == {topic: [0, 1]}
    assert [(each["partition"], each["committed"], each["lag"]) for each in detail["offsets"]] == [
        (0, 10, 20),
        (1, 0, 0),
    ]
    assert (detail["lag"], detail["max_lag"]) == (20, 20)
    summary = next(each for each in view(shared_broker, "/v1/groups") if each["group"] == group)
    assert summary["lag"] == 20
    assert metric(shared_broker, "penstock_group_lag_records", group=group, topic=topic) == 20
    assert metric(shared_broker, "penstock_group_max_lag_records", group=group, topic=topic) == 20


async def test_a_client_is_seen_by_its_name_while_it_is_connected(shared_broker: BrokerProcess) -> None:
    topic = await new_topic(shared_broker)
    name = f"client-{uuid4().hex[:8]}"
    producer = AIOKafkaProducer(bootstrap_servers=shared_broker.address, client_id=name)
    await producer.start()
    try:
        await producer.send_and_wait(topic, b"x")
        seen = [each for each in view(shared_broker, "/v1/connections") if each["client_id"] == name]
        assert seen
        assert all(each["requests"] > 0 and each["bytes_in"] > 0 for each in seen)
        assert seen[0]["peer"].startswith("127.0.0.1:")
    finally:
        await producer.stop()
    eventually(lambda: name not in {each["client_id"] for each in view(shared_broker, "/v1/connections")})


async def test_a_local_reader_shows_where_it_is_and_how_far_behind(shared_broker: BrokerProcess) -> None:
    topic = await new_topic(shared_broker)
    await produce(shared_broker, topic, [b"x" * 50] * 40)
    label = f"reader-{uuid4().hex[:8]}"

    def mine() -> Any:
        return next((each for each in view(shared_broker, "/v1/readers") if each["label"] == label), None)

    subscription = subscribe(shared_broker.address, {topic: None})
    with LogReader.of(subscription, Edge.EARLIEST, label=label) as reader:
        eventually(lambda: mine() is not None)
        assert mine()["lag"] == 40
        assert (
            metric(shared_broker, "penstock_reader_lag_records", reader=label, topic=topic, mode="push") == 40
        )
        assert len(list(reader.records(wait=0))) == 40
        eventually(lambda: mine()["lag"] == 0)
        (cursor,) = mine()["cursors"]
        assert (cursor["topic"], cursor["partition"], cursor["mode"]) == (topic, 0, "push")
        assert cursor["finished"] == cursor["high_watermark"] == 40
        assert cursor["pinned_segment"] == 0
        assert cursor["push_records"] == 40
        taken = metric(shared_broker, "penstock_reader_records_total", reader=label, topic=topic, mode="push")
        assert taken == 40
    eventually(lambda: mine() is None)
    # What it read stays counted: a counter that went back would look like a restart.
    taken = metric(shared_broker, "penstock_reader_records_total", reader=label, topic=topic, mode="push")
    assert taken == 40


async def test_metrics_count_what_went_in_and_out_of_a_topic(shared_broker: BrokerProcess) -> None:
    topic = await new_topic(shared_broker)
    await produce(shared_broker, topic, [b"x" * 100] * 500)
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=shared_broker.address, auto_offset_reset="earliest")
    await consumer.start()
    try:
        for _ in range(500):
            await consumer.getone()
    finally:
        await consumer.stop()
    assert metric(shared_broker, "penstock_topic_records_in_total", topic=topic) == 500
    size = metric(shared_broker, "penstock_topic_bytes_in_total", topic=topic)
    assert size > 500 * 100
    assert metric(shared_broker, "penstock_topic_bytes_out_total", topic=topic, way="pull") == size
    assert metric(shared_broker, "penstock_topic_records_out_total", topic=topic, way="pull") == 500
    assert metric(shared_broker, "penstock_topic_records_out_total", topic=topic, way="push") == 0
    assert metric(shared_broker, "penstock_topic_partitions", topic=topic) == 1


async def test_metrics_time_every_api_and_count_its_errors(shared_broker: BrokerProcess) -> None:
    topic = await new_topic(shared_broker)

    def count(api: str) -> float:
        return metrics(shared_broker).sum("penstock_request_seconds_count", api=api)

    before = count("Produce")
    await produce(shared_broker, topic, [b"x"])
    assert count("Produce") == before + 1
    assert count("Metadata") > 0
    assert metric(shared_broker, "penstock_request_seconds_bucket", api="Produce", le="+Inf") == before + 1
    consumer = AIOKafkaConsumer(bootstrap_servers=shared_broker.address, auto_offset_reset="none")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 1_000_000)
        with pytest.raises(KafkaError):
            await consumer.getone()
    finally:
        await consumer.stop()
    assert (
        metric(shared_broker, "penstock_request_errors_total", api="Fetch", code="offset_out_of_range") >= 1
    )


async def test_what_short_lived_readers_took_by_push_is_counted_for_the_topic(
    shared_broker: BrokerProcess,
) -> None:
    topic = await new_topic(shared_broker)
    subscription = subscribe(shared_broker.address, {topic: None})
    (place,) = subscription.places
    cursors = CursorFile(subscription.directory, "brief")

    def pushed() -> float:
        return metric(shared_broker, "penstock_topic_records_out_total", topic=topic, way="push")

    def read(records: int) -> None:
        """As a task does that is over before the broker could look at it."""
        slot = cursors.take_slot(place.topic_id, 0, 0)
        slot.finish(records, records, 50 * records)
        slot.free()

    try:
        read(40)
        eventually(lambda: pushed() == 40)
        read(2)
        eventually(lambda: pushed() == 42)
    finally:
        cursors.close()
    assert pushed() == 42
    assert metric(shared_broker, "penstock_topic_bytes_out_total", topic=topic, way="push") == 42 * 50


async def test_a_single_node_leads_everything_and_lacks_nobody(shared_broker: BrokerProcess) -> None:
    await new_topic(shared_broker)
    found = metrics(shared_broker)
    assert found.of("penstock_partitions", role="leader") == found.sum("penstock_topic_partitions") > 0
    assert found.of("penstock_partitions", role="backup") == 0
    assert found.of("penstock_under_replicated_partitions") == 0
    assert found.of("penstock_leaderless_partitions") == 0
    assert found.of("penstock_metadata_reachable") == 1
    assert found.of("penstock_elections_total", cause="failover") == 0


async def test_metrics_tell_memory_disk_and_the_process(shared_broker: BrokerProcess) -> None:
    await produce(shared_broker, await new_topic(shared_broker), [b"x"])
    found = {name: value for (name, labels), value in metrics(shared_broker).items() if not labels}
    assert found["penstock_memory_budget_bytes"] == 256 << 20
    assert 0 < found["penstock_memory_pool_bytes"] <= found["penstock_memory_budget_bytes"]
    assert found["penstock_disk_free_bytes"] > 0
    assert found["penstock_disk_refuses"] == 0
    assert found["penstock_write_behind_lag_seconds"] >= 0
    assert found["penstock_ready"] == 1
    assert found["process_cpu_seconds_total"] > 0
    assert found["process_resident_memory_bytes"] > 0
    assert 0 < found["penstock_memory_held_bytes"] <= found["penstock_memory_pool_bytes"]
    assert found["penstock_memory_filesystem_free_bytes"] <= found["penstock_memory_filesystem_size_bytes"]
    for name in ("detached", "free", "retiring"):
        assert f"penstock_memory_{name}_bytes" in found
    for name in ("penstock_memory_evictions_total", "penstock_connections", "penstock_readers"):
        assert name in found


def test_a_scrape_gets_open_metrics_when_it_asks_for_them(shared_broker: BrokerProcess) -> None:
    request = urllib.request.Request(
        shared_broker.http + "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.headers["content-type"].startswith("application/openmetrics-text")
        assert response.read().endswith(b"# EOF\n")


async def test_a_disk_that_refuses_makes_the_broker_unready_until_it_takes_the_log_again(
    broker: BrokerProcess,
) -> None:
    topic = await new_topic(broker)
    (directory,) = (broker.data_dir / "topics").glob(f"{topic}.*")
    shutil.rmtree(directory)
    await produce(broker, topic, [b"kept in memory"])
    eventually(lambda: get(broker, "/readyz")[0] == 503)
    reason = json.loads(get(broker, "/readyz")[1])["reason"]
    assert reason.startswith("the disk refuses to take the log: ")
    assert get(broker, "/healthz")[0] == 200
    assert metric(broker, "penstock_disk_refuses") == 1
    assert metric(broker, "penstock_write_behind_lag_seconds") > 0
    (directory / "0").mkdir(parents=True)
    eventually(lambda: get(broker, "/readyz")[0] == 200)
    assert metric(broker, "penstock_write_behind_unflushed_bytes") == 0


def test_labels_that_clients_choose_are_bounded_and_the_worst_are_shown() -> None:
    slots = []
    log = SimpleNamespace(high_watermark=1_000_000)
    served = SimpleNamespace(topic=SimpleNamespace(name="t"), logs=[log], replicas={0: log})
    catalog: Any = SimpleNamespace(by_id={b"t" * 16: served})
    totals = ReaderTotals()
    for at in range(MAX_SERIES + 50):
        slots.append(
            ReaderSlot(f"{at}", f"label {at}", 0, b"t" * 16, 0, SlotState.PUSH, -1, at, 10, 100, 0, 0)
        )
    totals.observe(slots, catalog)
    shown, _, omitted, _ = reader_lag(slots, catalog)
    assert len(shown.samples) == MAX_SERIES
    assert shown.samples[0].labels["reader"] == "label 0"
    assert omitted.samples[0].value == 50
    records, _ = totals.metrics()
    assert len(records.samples) <= MAX_SERIES + 2
    assert sum(sample.value for sample in records.samples) == 10 * (MAX_SERIES + 50)


def test_a_kept_open_http_connection_does_not_hold_up_the_stop(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", broker.http_port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        started = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - started < 5


def test_an_http_port_that_is_taken_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [*PENSTOCK, "broker", "--listen", f"127.0.0.1:{free_port()}", "--http", address]
        command += ["--data-dir", str(tmp_path / "data"), "--shm-dir", str(tmp_path / "shm")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert re.fullmatch(f"penstock broker: can't serve HTTP at {address}: [^\n]*in use\n", ended.stderr)


def test_port_zero_means_any_free_port_and_the_ready_line_tells_which(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as process:
        process.port = process.http_port = 0
        process.start()
        ready = re.search(r"^ready: kafka \S+:(\d+) http (\S+) ", process.log_text(), re.MULTILINE)
        assert ready is not None
        with urllib.request.urlopen(ready[2] + "/v1/broker", timeout=10) as response:
            assert json.load(response)["kafka"] == f"127.0.0.1:{ready[1]}"
