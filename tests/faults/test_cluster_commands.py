"""`penstock cluster`, `status` and `node` on real brokers: what operators do, and what must not be lost."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewPartitions, NewTopic

from cluster import QUIET, Cluster, Load, check, read_all, running
from etcd import EtcdProcess, needs_etcd
from harness import PENSTOCK, eventually, free_port, free_ports, promised
from rawclient import RawClient

pytestmark = needs_etcd


def penstock(*words: str, code: int = 0) -> str:
    done = subprocess.run([*PENSTOCK, *words], capture_output=True, text=True, timeout=90)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def write(bootstrap: str, topic: str, values: list[str], partition: int = 0) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 60_000, **QUIET}
    )
    failed: list[Any] = []
    for value in values:
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: error and failed.append(error)
        )
    assert producer.flush(60) == 0
    assert not failed


def has(bootstrap: str, topic: str, values: list[str], partitions: int = 1) -> None:
    """These records, in this order, partition by partition."""
    found = read_all(bootstrap, topic, partitions)
    there = [value.decode() for partition in sorted(found) for _, value in found[partition]]
    promised(there == values, there)


@pytest.mark.parametrize("comes_back", ["empty", "with its log"])
def test_an_unclean_election_needs_an_operators_word_and_says_what_is_lost(
    tmp_path: Path, comes_back: str
) -> None:
    with Cluster(tmp_path).start() as cluster:
        cluster.create("t", 1, 2)
        keeper = cluster.leader("t", 0)
        other = 3 - keeper
        on = ("--cluster", cluster.etcd.endpoint)
        write(cluster.bootstrap, "t", ["kept-1", "kept-2"])
        cluster.in_sync("t", 2)
        assert "no record needs to be lost" in penstock(
            "cluster", "elect", "t", "0", "--unclean", *on, code=1
        )

        cluster.brokers[other].kill()
        cluster.in_sync("t", 1)
        write(cluster.bootstrap, "t", ["lost-1", "lost-2", "lost-3"])
        cluster.brokers[keeper].kill()
        cluster.brokers[other].start()
        told = eventually_told(lambda: penstock("cluster", "elect", "t", "0", *on, code=1), "after offset 2")
        assert "LOST" in told
        assert cluster.leader("t", 0) != other, "nothing is elected without the word"

        assert f"broker {other} leads" in penstock("cluster", "elect", "t", "0", "--unclean", *on)
        write(cluster.bootstrap, "t", ["new-1"])
        if comes_back == "empty":
            cluster.brokers[keeper].lose_memory()
            cluster.brokers[keeper].lose_disk()
        cluster.brokers[keeper].start()
        cluster.in_sync("t", 2)
        has(cluster.bootstrap, "t", ["kept-1", "kept-2", "new-1"])
        penstock("cluster", "move-leader", "t", "0", str(keeper), *on)
        has(cluster.bootstrap, "t", ["kept-1", "kept-2", "new-1"])
        if comes_back == "with its log":
            assert "an operator gave its log up" in cluster.brokers[keeper].log_text()


def test_after_a_loss_of_power_everywhere_an_operators_word_brings_back_all_that_was_synced(
    tmp_path: Path,
) -> None:
    """Under load, whose idempotent producer then sends again what had no answer: that is there once, too."""
    with Cluster(tmp_path).start() as cluster:
        cluster.create("t", 1, 2, {"durability": "disk"})
        on = ("--cluster", cluster.etcd.endpoint)
        brokers = cluster.brokers.values()
        with running(cluster, Load(cluster, "t", 1)) as load:
            load.progress(1000)
            for number in cluster.brokers:
                cluster.signal(number, signal.SIGKILL)  # both, before one can have the other dropped
            for broker in brokers:
                broker.kill()
                broker.lose_memory()
            for broker in brokers:
                broker.launch()
            for broker in brokers:
                broker.ready()
            acknowledged = load.count
            chosen, _ = cluster.partitions("t")[0]["in_sync"][0]
            elect = ("cluster", "elect", "t", "0", str(chosen))
            eventually_told(lambda: penstock(*elect, *on, code=1), "nothing was changed")
            assert load.count == acknowledged, "offline without the word: no log is the one that was in sync"

            assert f"broker {chosen} leads" in penstock(*elect, "--unclean", *on)
            load.progress(500)
            cluster.in_sync("t", 2)
            load.progress(500)
        assert check(load, read_all(cluster.bootstrap, "t", 1)) > acknowledged
        cluster.brokers[chosen].kill()  # the other was copied anew, and has it all
        eventually(lambda: cluster.leader("t", 0) != chosen, 20, 0.05)
        check(load, read_all(cluster.bootstrap, "t", 1))


def eventually_told(ask: Any, words: str) -> str:
    """The broker's HTTP comes a moment after the broker."""
    told = ""

    def look() -> bool:
        nonlocal told
        told = ask()
        return words in told

    eventually(look, 30, 0.3)
    return told


def test_a_topic_grows_and_the_cluster_shows_itself(tmp_path: Path) -> None:
    with Cluster(tmp_path).start() as cluster:
        cluster.create("t", 2, 2)
        on = ("--cluster", cluster.etcd.endpoint)
        assert "4 partitions" in penstock("cluster", "add-partitions", "t", "4", *on)
        assert "can only get more" in penstock("cluster", "add-partitions", "t", "3", *on, code=1)
        cluster.in_sync("t", 2)
        write(cluster.bootstrap, "t", ["x"], partition=3)

        penstock("topic", "create", "placed", "-p", "3", "--on", "2,1", "-b", cluster.bootstrap)
        cluster.in_sync("placed", 2)  # until then a broker is not ready, and status says so by its exit code
        view = json.loads(penstock("status", "--http", cluster.brokers[1].http, "--json"))["cluster"]
        placed = [each for each in view["partitions"] if each["topic"] == "placed"]
        assert [(each["leader"], each["replicas"]) for each in placed] == [(2, [2, 1])] * 3
        assert [(broker["broker_id"], broker["alive"]) for broker in view["brokers"]] == [
            (1, True),
            (2, True),
        ]
        grown = [each for each in view["partitions"] if each["topic"] == "t"]
        assert [each["partition"] for each in grown] == [0, 1, 2, 3]
        for each in grown:
            backup = next(number for number in each["replicas"] if number != each["leader"])
            assert list(each["lags"]) == [str(backup)], "whoever leads it was asked"
        assert view["silent"] == []
        assert {e["leader"] for e in view["elections"]} == {1, 2}
        assert all(e["reason"] for e in view["elections"])

        text = penstock("status", "--http", cluster.brokers[1].http)
        assert "last elections" in text
        cluster.brokers[2].kill()
        cluster.in_sync("t", 1)
        text = penstock("cluster", "status", *on, code=1)
        assert re.search(r"broker 2 (closed its connection|out of sync|silent)", text)


def test_a_partition_is_reassigned_to_other_brokers_with_all_its_records(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3).start() as cluster:
        cluster.create("t", 1, 2)
        on = ("--cluster", cluster.etcd.endpoint)
        written = [str(number) for number in range(100)]
        write(cluster.bootstrap, "t", written)
        before = cluster.partitions("t")[0]
        (free,) = {1, 2, 3} - set(before["replicas"])
        leaves, stays = before["replicas"]
        for wrong in ("", "7", f"{stays},{stays}", f"{stays},x"):
            assert "each once" in penstock("cluster", "reassign", "t", "0", wrong, *on, code=1)
        assert "no partition t-1" in penstock("cluster", "reassign", "t", "1", str(stays), *on, code=1)
        assert cluster.partitions("t")[0]["replicas"] == before["replicas"]

        assert "done" in penstock("cluster", "reassign", "t", "0", f"{free},{stays}", *on)
        now = cluster.partitions("t")[0]
        assert (now["leader"], now["replicas"]) == (free, [free, stays])
        assert {broker for broker, _ in now["in_sync"]} == {free, stays}
        cluster.brokers[leaves].kill()
        cluster.brokers[stays].kill()  # the new one alone has everything
        cluster.in_sync("t", 1)
        write(cluster.bootstrap, "t", ["more"])
        has(cluster.bootstrap, "t", [*written, "more"])


def test_a_replica_that_was_moved_away_while_its_broker_was_down_is_deleted_when_it_is_back(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, 3).start() as cluster:
        on = ("--cluster", cluster.etcd.endpoint)
        admin = cluster.admin()
        written = [[f"{partition}-{number}" for number in range(100)] for partition in (0, 1)]
        for topic in ("t", "deleted"):
            penstock("topic", "create", topic, "-p", "2", "--on", "1,3", "-b", cluster.bootstrap)
            cluster.in_sync(topic, 2)
            for partition, values in enumerate(written):
                write(cluster.bootstrap, topic, values, partition)
        back = cluster.brokers[3]

        def directories(topic: str) -> list[list[Path]]:
            """On disk and in memory, of each partition."""
            (disk,) = (back.data_dir / "topics").glob(f"{topic}.*")
            memory = back.shm_dir / "3" / disk.name.rpartition(".")[2]
            return [[disk / str(partition), memory / str(partition)] for partition in (0, 1)]

        (moved, stays), (one, two) = directories("t"), directories("deleted")
        deleted = [*one, *two]
        assert back.stop() == 0
        assert "done" in penstock("cluster", "reassign", "t", "0", "1,2", *on)
        admin.delete_topics(["deleted"])["deleted"].result(30)
        assert all(each.exists() for each in (*moved, *stays, *deleted))

        back.start()
        eventually(lambda: not any(each.exists() for each in moved), 30)
        cluster.in_sync("t", 2)
        assert all(any(each.iterdir()) for each in (*stays, *deleted))
        assert "t-0 was moved away while this broker was down" in back.log_text()
        eventually(lambda: "the topics of 2 partitions that take" in back.log_text(), 10)
        has(cluster.bootstrap, "t", [*written[0], *written[1]], 2)

        assert "done" in penstock("cluster", "reassign", "t", "0", "3,2", *on)
        assert all(each.exists() for each in moved)
        cluster.brokers[1].kill()
        cluster.brokers[2].kill()  # it alone has everything
        cluster.in_sync("t", 1)
        has(cluster.bootstrap, "t", [*written[0], *written[1]], 2)


def test_a_drained_broker_gets_nothing_until_it_is_back_and_then_what_is_lacking(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3).start() as cluster:
        cluster.create("t", 3, 3)
        cluster.in_sync("__consumer_offsets", 3)
        on = ("--cluster", cluster.etcd.endpoint)
        admin = cluster.admin()

        def used(topic: str) -> set[int]:
            return {
                each for partition in cluster.partitions(topic).values() for each in partition["replicas"]
            }

        def made(topic: str) -> set[int]:
            admin.create_topics([NewTopic(topic, 4, replication_factor=2)])[topic].result(30)
            return used(topic)

        penstock("cluster", "status", *on)
        assert "no broker 7" in penstock("cluster", "drain", "7", *on, code=1)
        assert "fewer replicas than wanted" in penstock("cluster", "drain", "3", *on)
        assert used("t") == used("__consumer_offsets") == {1, 2}
        assert "7 partitions have fewer replicas than wanted" in penstock("cluster", "status", *on, code=1)
        view = json.loads(penstock("status", "--http", cluster.brokers[1].http, "--json"))["cluster"]
        assert {(len(each["replicas"]), each["wanted"]) for each in view["partitions"]} == {(2, 3)}
        assert [broker["broker_id"] for broker in view["brokers"] if broker["drained"]] == [3]
        assert made("while-drained") == {1, 2}, "it has the least, but is not to have any"
        penstock("cluster", "rebalance", *on)
        assert used("t") == {1, 2}

        assert "may have replicas again" in penstock("cluster", "drain", "3", "--undo", *on)
        assert "is not drained" in penstock("cluster", "drain", "3", "--undo", *on, code=1)
        assert 3 in made("undone")
        penstock("cluster", "drain", "3", *on)
        cluster.brokers[3].stop()
        cluster.brokers[3].start()
        assert 3 in made("restarted")
        penstock("cluster", "rebalance", *on)
        cluster.in_sync("t", 3)
        cluster.in_sync("__consumer_offsets", 3)
        penstock("cluster", "status", *on)

        for partition, text in enumerate(("1,2", "2,3", "3,1")):
            told = penstock("cluster", "reassign", "t", str(partition), text, *on)
            assert ("t wants 2 replicas" in told) == (partition == 2), "once all have that many"
        penstock("cluster", "status", *on)


def test_new_partitions_go_to_the_brokers_that_a_client_names(tmp_path: Path) -> None:
    with Cluster(tmp_path).start() as cluster:
        cluster.create("t", 1, 2)
        admin = cluster.admin()
        for wrong in ([[2, 1], [7]], [[2, 2], [1]]):
            more = NewPartitions("t", 3, replica_assignment=wrong)
            with pytest.raises(KafkaException) as refused:
                admin.create_partitions([more])["t"].result(30)
            assert refused.value.args[0].code() == KafkaError.INVALID_REPLICA_ASSIGNMENT
        admin.create_partitions([NewPartitions("t", 3, replica_assignment=[[2, 1], [1]])])["t"].result(30)
        found = cluster.partitions("t")
        assert [(found[index]["leader"], found[index]["replicas"]) for index in (1, 2)] == [
            (2, [2, 1]),
            (1, [1]),
        ]


def test_a_group_finds_its_coordinator_through_a_broker_with_another_setting(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.brokers[2].environment["PENSTOCK_OFFSETS_PARTITIONS"] = "9"
        cluster.start()
        cluster.create("t", 1, 2)
        cluster.in_sync("__consumer_offsets", 2)
        on = ("--cluster", cluster.etcd.endpoint)
        assert "is internal" in penstock("cluster", "add-partitions", "__consumer_offsets", "30", *on, code=1)
        one, other = (broker.address for broker in cluster.brokers.values())
        eventually(lambda: _coordinators(one) == _coordinators(other), 20)  # leaders may still go home
        assert set(_coordinators(one)) == {1, 2}


def _coordinators(address: str) -> list[int]:
    """Of twenty groups, as one broker says."""
    with RawClient(address) as client:
        asked = [client.ask(10, 1, key=f"group-{number}", key_type=0) for number in range(20)]
    return [answer.node_id for answer in asked]


# penstock node


@contextmanager
def node(
    directory: Path, brokers: int, *options: str
) -> Iterator[tuple[subprocess.Popen[bytes], str, list[int]]]:
    ports = [free_ports(brokers + 1) for _ in range(3)]
    log = directory / "node.log"
    with EtcdProcess(directory / "etcd").start() as etcd, log.open("wb") as out:
        process = subprocess.Popen(
            [
                *(*PENSTOCK, "node", "--brokers", str(brokers), "--cluster", etcd.endpoint),
                *("--listen", f"127.0.0.1:{ports[0]}", "--replication-listen", f"127.0.0.1:{ports[1]}"),
                *("--http", f"127.0.0.1:{ports[2]}", "--data-dir", str(directory / "data")),
                *("--shm-dir", f"/dev/shm/penstock-test-node-{os.getpid()}", "--memory", "256MiB", *options),
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PENSTOCK_OFFSETS_PARTITIONS": "2"},
        )
        try:
            eventually(lambda: b"\nready: " in b"\n" + log.read_bytes() or process.poll() is not None, 60)
            assert process.poll() is None, log.read_text()
            yield process, f"http://127.0.0.1:{ports[2]}", ports
        except BaseException as error:
            error.add_note(log.read_text()[-6000:])
            raise
        finally:
            process.kill()
            process.wait(10)
            subprocess.run(["rm", "-rf", f"/dev/shm/penstock-test-node-{os.getpid()}"], check=False)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
        return json.loads(text) if "json" in answer.headers["content-type"] else text


def test_a_node_runs_brokers_of_its_own_restarts_one_that_dies_and_stops_cleanly(tmp_path: Path) -> None:
    with node(tmp_path, 2) as (process, http, ports):
        bootstrap = f"127.0.0.1:{ports[0]},127.0.0.1:{ports[0] + 1}"
        first = f"127.0.0.1:{ports[0]}"
        create = [*PENSTOCK, "topic", "create", "t", "--partitions", "2", "--replication", "2", "-b", first]
        # Each is ready by itself; a moment later it has heard of the other, too.
        eventually(lambda: subprocess.run(create, timeout=90).returncode == 0, 30)
        write(bootstrap, "t", ["a"])
        assert get(f"{http}/healthz") == {"status": "alive"}
        eventually(lambda: _is_ready(http), 20)
        brokers = get(f"{http}/v1/node")
        assert [broker["broker_id"] for broker in brokers] == [1, 2]
        metrics = get(f"{http}/metrics")
        for number in ("1", "2"):
            assert f'penstock_node_broker_up{{broker="{number}"}} 1.0' in metrics
            assert re.search(rf'penstock_topic_records_in_total{{[^}}]*broker="{number}"', metrics), metrics[
                :3000
            ]

        os.kill(brokers[0]["pid"], signal.SIGKILL)
        eventually(lambda: get(f"{http}/v1/node")[0]["restarts"] == 1, 20)
        write(bootstrap, "t", ["b"])
        eventually(lambda: get(f"{http}/v1/node")[0]["ready"], 30)
        assert 'penstock_node_broker_restarts_total{broker="1"} 1.0' in get(f"{http}/metrics")
        has(bootstrap, "t", ["a", "b"], partitions=2)

        pids = [broker["pid"] for broker in get(f"{http}/v1/node")]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        assert (tmp_path / "node.log").read_text().count("stopped: everything is on disk") == 2


def _is_ready(http: str) -> bool:
    try:
        return bool(get(f"{http}/readyz")["ready"])
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return False


def test_brokers_stop_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with node(tmp_path, 2) as (process, http, _):
        pids = [broker["pid"] for broker in get(f"{http}/v1/node")]
        process.kill()
        process.wait(10)
        eventually(lambda: not any(_is_running(pid) for pid in pids), 20)


def _is_running(pid: int) -> bool:
    """Not gone, and not a zombie that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_broker_that_keeps_dying_is_started_ever_later(tmp_path: Path) -> None:
    """Its port is taken: it can't get up, and the node says so and stays."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]
    http = free_ports(2)  # its own, and that of its broker
    with EtcdProcess(tmp_path / "etcd").start() as etcd:
        process = subprocess.Popen(
            [
                *(*PENSTOCK, "node", "--brokers", "1", "--cluster", etcd.endpoint),
                *("--listen", f"127.0.0.1:{port}", "--replication-listen", f"127.0.0.1:{free_port()}"),
                *("--http", f"127.0.0.1:{http}", "--data-dir", str(tmp_path / "data"), "--memory", "64MiB"),
                *("--shm-dir", str(tmp_path / "shm")),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            eventually(lambda: _restarts(http) >= 2, 60, 0.2)
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(f"http://127.0.0.1:{http}/readyz")
            assert refused.value.code == 503
            taken.close()
            eventually(lambda: get(f"http://127.0.0.1:{http}/v1/node")[0]["ready"], 60, 0.2)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def _restarts(http: int) -> int:
    try:
        restarts: int = get(f"http://127.0.0.1:{http}/v1/node")[0]["restarts"]
        return restarts
    except OSError:
        time.sleep(0.1)
        return 0
