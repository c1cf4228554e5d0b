"""A cluster under load loses brokers in every way: nothing acknowledged is lost, repeated or moved."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from cluster import Cluster, Follower, Load, check, read_all, running
from etcd import needs_etcd
from harness import PENSTOCK, BrokerProcess, eventually, promised
from penstock.wire.errors import ErrorCode
from rawclient import RawClient, produce_tree, read_response, record_batch, request_bytes
from scraping import scrape

pytestmark = needs_etcd

ROUNDS = int(os.environ.get("CLUSTER_ROUNDS", "3"))
SEED = int(os.environ.get("CLUSTER_SEED", "1"))
PARTITIONS = 4


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_kill_9_of_the_leader_costs_a_second_at_most_and_no_record(tmp_path: Path, durability: str) -> None:
    pauses = []
    with Cluster(tmp_path).start() as cluster:
        cluster.create("t", 1, 2, {"durability": durability})
        with running(cluster, Load(cluster, "t", 1)) as load:
            for _ in range(ROUNDS):
                load.progress(500)
                leader = cluster.leader("t", 0)
                moment = time.monotonic()
                cluster.brokers[leader].kill()
                load.progress(500)
                cluster.brokers[leader].start()
                cluster.in_sync("t", 2)
                pauses.append(load.longest_pause(moment))
        assert check(load, read_all(cluster.bootstrap, "t", 1)) > 1000 * ROUNDS
    print("pauses after kill -9:", [f"{pause:.3f}" for pause in pauses])
    assert sorted(pauses)[len(pauses) // 2] <= 1


def test_a_leader_that_hangs_is_replaced_and_can_do_no_harm_when_it_wakes_up(tmp_path: Path) -> None:
    pauses = []
    with Cluster(tmp_path).start() as cluster:
        cluster.create("t", 1, 2)
        with running(cluster, Load(cluster, "t", 1, timeout_ms=300)) as load:
            for _ in range(ROUNDS):
                load.progress(500)
                leader = cluster.leader("t", 0)
                moment = time.monotonic()
                cluster.signal(leader, signal.SIGSTOP)
                load.progress(500)
                cluster.signal(leader, signal.SIGCONT)
                cluster.in_sync("t", 2)
                pauses.append(load.longest_pause(moment))
        check(load, read_all(cluster.bootstrap, "t", 1))
    print("pauses after SIGSTOP:", [f"{pause:.3f}" for pause in pauses])
    # Another leads within a second, but the client's connection stays open: it waits for its own timeout,
    # which librdkafka looks after once a second.
    assert sorted(pauses)[len(pauses) // 2] <= 1.5


@pytest.mark.parametrize("brokers", [2, 3])
def test_brokers_die_hang_and_restart_at_random_under_load(tmp_path: Path, brokers: int) -> None:
    chance = random.Random(SEED * 100 + brokers)
    with Cluster(tmp_path, brokers).start() as cluster:
        cluster.create("t", PARTITIONS, brokers, {"segment.bytes": "1048576"})
        with running(cluster, Load(cluster, "t", PARTITIONS)) as load:
            for _ in range(2 * ROUNDS):
                load.progress(300)
                victim = chance.choice(list(cluster.brokers))
                broker = cluster.brokers[victim]
                fault = chance.choice(["kill", "hang", "stop", "blink"])
                time.sleep(chance.uniform(0, 0.3))
                if fault == "hang":
                    cluster.signal(victim, signal.SIGSTOP)
                    time.sleep(chance.uniform(0.1, 1.5))
                    cluster.signal(victim, signal.SIGCONT)
                elif fault == "stop":
                    assert broker.stop() == 0
                    broker.start()
                else:
                    broker.kill()
                    if fault == "kill":
                        load.progress(100)
                    broker.start()
                cluster.in_sync("t", brokers)
        assert check(load, read_all(cluster.bootstrap, "t", PARTITIONS)) > 300 * ROUNDS


def test_a_broker_that_lost_its_memory_and_disk_gets_them_back_from_its_peer(tmp_path: Path) -> None:
    with Cluster(tmp_path).start() as cluster:
        cluster.create("t", PARTITIONS, 2, {"segment.bytes": "1048576"})
        with running(cluster, Load(cluster, "t", PARTITIONS)) as load:
            for what in ("memory", "disk", "both"):
                load.progress(500)
                victim = cluster.brokers[1]
                victim.kill()
                if what in ("memory", "both"):
                    victim.lose_memory()
                if what in ("disk", "both"):
                    victim.lose_disk()
                victim.start()
                cluster.in_sync("t", 2)
            # Now the other one goes: everything must be on the first.
            cluster.brokers[2].kill()
            load.progress(200)
            cluster.brokers[2].start()
        check(load, read_all(cluster.bootstrap, "t", PARTITIONS))


def test_a_cluster_serves_while_etcd_is_away_and_elects_when_it_is_back(tmp_path: Path) -> None:
    with Cluster(tmp_path).start() as cluster:
        cluster.create("t", 1, 2)
        cluster.in_sync("__consumer_offsets", 2)
        readers = [Follower(cluster, "t")]
        with running(cluster, Load(cluster, "t", 1)) as load:
            load.progress(300)
            eventually(lambda: readers[0].count > 0, 30)
            cluster.etcd.kill()
            readers.append(Follower(cluster, "t", "began without etcd"))
            load.progress(500)
            for broker in cluster.brokers.values():
                becomes(broker, "out of touch with etcd")
                assert scrape(f"{broker.http}/metrics").of("penstock_metadata_reachable") == 0
                assert "etcd can't be reached" in broker.log_text()
                told = subprocess.run(
                    [*PENSTOCK, "status", "--http", broker.http], capture_output=True, text=True, timeout=60
                )
                assert "etcd can't be reached" in told.stdout, told.stdout + told.stderr
            load.progress(500)
            written = load.count
            eventually(lambda: all(reader.count >= written for reader in readers), 30)
            cluster.etcd.start()
            load.progress(300)
            for broker in cluster.brokers.values():
                becomes(broker, "")
                assert scrape(f"{broker.http}/metrics").of("penstock_metadata_reachable") == 1
            leader = cluster.leader("t", 0)
            cluster.brokers[leader].kill()
            load.progress(300)
            cluster.brokers[leader].start()
            cluster.in_sync("t", 2)
        found = read_all(cluster.bootstrap, "t", 1)
        check(load, found)
        for reader in readers:
            reader.finish(found)


def becomes(broker: BrokerProcess, reason: str) -> None:
    """Wait until /readyz gives this reason against it; empty: until it is ready."""

    def says_so() -> bool:
        try:
            urllib.request.urlopen(f"{broker.http}/readyz", timeout=10).close()
        except urllib.error.HTTPError as refused:
            assert refused.code == 503
            return reason != "" and reason in refused.read().decode()
        except OSError:
            return False  # its HTTP comes a moment after the broker
        return reason == ""

    eventually(says_so, 30, 0.1)


def test_etcd_restored_from_a_backup_under_running_brokers_costs_a_restart_and_no_record(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path).start() as cluster:
        cluster.create("t", 1, 2)
        with running(cluster, Load(cluster, "t", 1)) as load:
            load.progress(200)
            cluster.etcd.save(tmp_path / "backup")
            load.progress(200)
            first = cluster.brokers[cluster.leader("t", 0)]
            first.kill()
            load.progress(200)
            first.start()
            cluster.in_sync("t", 2)
            cluster.etcd.restore(tmp_path / "backup")
            for broker in cluster.brokers.values():
                becomes(broker, "earlier state")
            load.progress(200)
            for broker in cluster.brokers.values():
                assert broker.stop() == 0
            for broker in cluster.brokers.values():
                broker.launch()
            for broker in cluster.brokers.values():
                broker.ready()
                becomes(broker, "")
            cluster.in_sync("t", 2)
            load.progress(200)
        check(load, read_all(cluster.bootstrap, "t", 1))


def test_a_deposed_leader_tells_whom_it_kept_waiting_that_their_records_may_be_there(tmp_path: Path) -> None:
    """NOT_LEADER_OR_FOLLOWER would mean "not written": librdkafka then sends them in other batches, twice."""
    with Cluster(tmp_path).start() as cluster:
        cluster.create("t", 1, 2)
        old = cluster.leader("t", 0)
        new = 3 - old
        with RawClient(cluster.brokers[old].address, timeout=30) as client:
            cluster.etcd.signal(signal.SIGSTOP)  # so that the silent backup can't be dropped
            cluster.signal(new, signal.SIGSTOP)
            tree = produce_tree("t", record_batch([b"waits"])) | {"timeout": 60_000}
            client.send(request_bytes(0, 9, tree))
            time.sleep(0.2)  # it is appended by now, and nobody can acknowledge it
            cluster.signal(old, signal.SIGSTOP)
            cluster.etcd.signal(signal.SIGCONT)
            cluster.signal(new, signal.SIGCONT)
            eventually(lambda: cluster.leader("t", 0) == new, 20, 0.05)
            cluster.signal(old, signal.SIGCONT)
            _, answer = read_response(0, 9, client.receive())
            (partition,) = answer.responses[0].partition_responses
            # The backup took it before it stood for election: if the old leader reads that acknowledgement
            # before it hears of its successor, the record is committed, and it may say so.
            assert partition.error_code in (ErrorCode.none, ErrorCode.not_enough_replicas_after_append)
        found = [value for _, value in read_all(cluster.bootstrap, "t", 1)[0]]
        promised(found == [b"waits"], found)


def test_configs_and_leader_epochs_are_there_after_failover(tmp_path: Path) -> None:
    def produce(broker: int, values: list[bytes]) -> None:
        with RawClient(cluster.brokers[broker].address, timeout=30) as client:
            answer = client.ask(0, 9, **produce_tree("t", record_batch(values)))
            assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none

    with Cluster(tmp_path).start() as cluster:
        cluster.create("t", 1, 2, {"retention.ms": "777000", "max.message.bytes": "4242"})
        old = cluster.leader("t", 0)
        before = cluster.partitions("t")[0]["epoch"]
        produce(old, [b"a", b"b", b"c"])
        cluster.brokers[old].kill()
        eventually(lambda: cluster.leader("t", 0) == 3 - old, 20, 0.05)
        after = cluster.partitions("t")[0]["epoch"]
        assert after > before
        produce(3 - old, [b"d"])
        with RawClient(cluster.brokers[3 - old].address) as client:
            asked = {"partition": 0, "current_leader_epoch": after, "leader_epoch": before}
            answer = client.ask(23, 3, replica_id=-1, topics=[{"topic": "t", "partitions": [asked]}])
            (found,) = answer.topics[0].partitions
            assert (found.error_code, found.leader_epoch, found.end_offset) == (ErrorCode.none, before, 3)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "t")
        admin = AdminClient({"bootstrap.servers": cluster.brokers[3 - old].address})
        configs = admin.describe_configs([resource])[resource].result(20)
        assert (configs["retention.ms"].value, configs["max.message.bytes"].value) == ("777000", "4242")


def test_a_rolling_restart_costs_no_error_and_no_pause_over_a_second(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3).start() as cluster:
        cluster.create("t", PARTITIONS, 3)
        cluster.in_sync("__consumer_offsets", 3)
        follower = Follower(cluster, "t")
        pauses = []
        with running(cluster, Load(cluster, "t", PARTITIONS)) as load:
            load.progress(500)
            eventually(lambda: len(follower.read) == PARTITIONS, 30)
            begun = time.monotonic()
            for broker in cluster.brokers.values():
                moment = time.monotonic()
                assert broker.stop() == 0
                load.progress(300)
                broker.start()
                cluster.in_sync("t", 3)
                pauses.append(load.longest_pause(moment))
            moment = time.monotonic()
            eventually(lambda: leaders_are_home(cluster, "t"), 30, 0.1)
            load.progress(300)
            pauses.append(load.longest_pause(moment))
            reading = follower.longest_pause(begun)
        found = read_all(cluster.bootstrap, "t", PARTITIONS)
        check(load, found)
        follower.finish(found)
    print(
        "rolling restart, pauses of the producer",
        [f"{pause:.3f}" for pause in pauses],
        f"consumer {reading:.3f}",
    )
    assert max(pauses) <= 1
    assert reading <= 1


def leaders_are_home(cluster: Cluster, topic: str) -> bool:
    return all(state["leader"] == state["replicas"][0] for state in cluster.partitions(topic).values())


def test_clients_hear_of_a_broker_for_a_while_after_it_left(tmp_path: Path) -> None:
    with Cluster(tmp_path).start() as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.brokers[1].address})
        cluster.in_sync("__consumer_offsets", 2)  # else nobody can lead what only the one that leaves has
        assert cluster.brokers[2].stop() == 0
        assert set(admin.list_topics(timeout=5).brokers) == {1, 2}
        eventually(lambda: set(admin.list_topics(timeout=5).brokers) == {1}, 30, 0.2)


def test_a_broker_that_starts_says_of_no_topic_that_it_does_not_exist(tmp_path: Path) -> None:
    """Spark stops a query that hears it: the records it has yet to read seem to be lost."""
    with Cluster(tmp_path).start() as cluster:
        cluster.create("t", 1, 2)
        broker = cluster.brokers[1]
        heard: set[ErrorCode] = set()

        def knows() -> bool:
            with contextlib.suppress(ConnectionRefusedError), RawClient(broker.address) as client:
                answer = client.ask(3, 5, topics=[{"name": "t"}], allow_auto_topic_creation=False)
                heard.add(answer.topics[0].error_code)
                return answer.topics[0].error_code is ErrorCode.none
            return False

        for _ in range(ROUNDS):
            broker.kill()
            broker.launch()
            eventually(knows, 60, 0.001)
        assert heard == {ErrorCode.none}


def test_replicas_and_leaders_move_by_command_without_an_error_or_a_pause_over_a_second(
    tmp_path: Path,
) -> None:
    def penstock(*words: str) -> str:
        command = [*PENSTOCK, "cluster", *words, "--cluster", cluster.etcd.endpoint]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}\n{cluster.logs()}"
        return done.stdout

    with Cluster(tmp_path, 3).start() as cluster:
        cluster.create("t", PARTITIONS, 2)
        cluster.in_sync("__consumer_offsets", 3)
        follower = Follower(cluster, "t")
        with running(cluster, Load(cluster, "t", PARTITIONS)) as load:
            load.progress(300)
            eventually(lambda: len(follower.read) == PARTITIONS, 30)
            moment = time.monotonic()
            first = cluster.partitions("t")[0]
            penstock("move-leader", "t", "0", str(first["replicas"][1]))
            assert cluster.leader("t", 0) == first["replicas"][1]
            penstock("drain", "3")
            assert not any(3 in state["replicas"] for state in cluster.partitions("t").values())
            load.progress(300)
            assert cluster.brokers[3].stop() == 0
            load.progress(300)
            cluster.brokers[3].start()
            penstock("rebalance")
            assert any(3 in state["replicas"] for state in cluster.partitions("t").values())
            assert "__consumer_offsets" in penstock("status")
            load.progress(300)
            pause, reading = load.longest_pause(moment), follower.longest_pause(moment)
        found = read_all(cluster.bootstrap, "t", PARTITIONS)
        check(load, found)
        follower.finish(found)
    print(f"a broker drained, stopped, and back: pause of the producer {pause:.3f}, consumer {reading:.3f}")
    assert pause <= 1
    assert reading <= 1
