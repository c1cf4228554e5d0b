"""What a broker believes of what etcd tells it, and what not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict
from typing import cast

import pytest

from penstock.cluster.directory import ClusterDirectory
from penstock.cluster.etcd import EtcdMetadata
from penstock.cluster.membership import BrokerInfo, Registration
from penstock.cluster.metadata import Change, Update, Versioned
from penstock.cluster.partitions import PartitionKey
from penstock.cluster.topics import Topic
from penstock.wire.errors import KafkaError

_TOPIC = Versioned("/topics/t", {"id": "0" * 31 + "1", "configs": {}, "partitions": [[-1, -1, [1], []]]}, 2)


class _Told:
    """A store that tells what the test says."""

    def __init__(self) -> None:
        self.updates: asyncio.Queue[Update] = asyncio.Queue()

    async def get(self, key: str) -> Versioned | None:
        return Versioned(key, {"id": "ours"}, 1)

    async def scan(self, prefix: str) -> list[Versioned]:
        return []

    async def swap(self, changes: Sequence[Change]) -> bool:
        return True

    async def watch(self, prefix: str) -> AsyncGenerator[Update, None]:
        while True:
            yield await self.updates.get()
            self.updates.task_done()

    async def close(self) -> None: ...


def _whole(*topics: Versioned, cluster: str | None) -> Update:
    named = () if cluster is None else (Versioned("/cluster", {"id": cluster}, 1),)
    return Update((*named, *topics), whole=True)


async def test_a_topic_that_was_made_when_unclean_elections_were_accepted_is_still_there() -> None:
    store = _Told()
    directory = ClusterDirectory(store, 1, {})
    configs = {"unclean.leader.election.enable": "TRUE", "retention.ms": "5"}
    store.updates.put_nowait(
        _whole(Versioned("/topics/t", {**_TOPIC.value, "configs": configs}, 2), cluster="ours")
    )
    await directory.load()
    await directory.close()
    assert directory.by_name["t"].configs == {"retention.ms": "5"}


@pytest.mark.parametrize("cluster", [None, "another"])
async def test_an_etcd_that_forgot_the_cluster_deletes_no_topic(cluster: str | None) -> None:
    store = _Told()
    directory = ClusterDirectory(store, 1, {})
    store.updates.put_nowait(_whole(_TOPIC, cluster="ours"))
    await directory.load()
    try:
        for update, foreign in (
            (_whole(cluster=cluster), True),
            (Update((Versioned("/topics/t", None, 9),)), True),
            (_whole(_TOPIC, cluster="ours"), False),
        ):
            await store.updates.put(update)
            await asyncio.wait_for(store.updates.join(), 5)
            assert directory.foreign is foreign
            assert "t" in directory.by_name
        await store.updates.put(_whole(cluster="ours"))  # our own etcd is believed
        await asyncio.wait_for(store.updates.join(), 5)
        assert "t" not in directory.by_name
    finally:
        await directory.close()


def _brokers(*numbers: int) -> list[Versioned]:
    info = {"host": "h", "port": 1, "replication_host": "h", "replication_port": 2, "rack": None}
    return [
        Versioned(f"/brokers/{number}", {"broker_id": number, "incarnation": 1, **info}, 1)
        for number in numbers
    ]


async def _placing(store: _Told, *entries: Versioned) -> ClusterDirectory:
    directory = ClusterDirectory(store, 1, {})
    store.updates.put_nowait(_whole(*entries, cluster="ours"))
    await directory.load()
    return directory


async def test_a_topic_wants_what_its_key_says_and_without_that_what_it_lists() -> None:
    key = bytes.fromhex("0" * 31 + "1")
    led = {"leader": 1, "epoch": 0, "replicas": [1], "in_sync": [[1, 1]]}
    drained = Versioned(f"/partitions/{key.hex()}/0", led, 3)
    value = {**_TOPIC.value, "partitions": [[-1, -1, [1, 2], []], [-1, -1, [2, 1], []]]}
    for said, wanted in (({}, 2), ({"replication": 3}, 3)):
        store = _Told()
        directory = await _placing(
            store, Versioned("/topics/t", {**value, **said}, 2), drained, *_brokers(1, 2, 3)
        )
        assert directory.by_name["t"].partitions[0].replicas == (1,)
        assert directory.wanted() == {(key, 0): wanted, (key, 1): wanted}
        grown = await directory.add_partitions("t", 4, validate_only=True)
        assert [len(info.replicas) for info in grown.partitions] == [1, 2, wanted, wanted]
        await directory.close()


async def test_a_drained_broker_is_given_nothing_until_its_mark_is_gone() -> None:
    store = _Told()
    directory = await _placing(store, _TOPIC, *_brokers(1, 2, 3), Versioned("/drained/2", {}, 1))
    try:

        async def used(replication: int) -> set[int]:
            made = await directory.create("new", 6, {}, replication, validate_only=True)
            grown = await directory.add_partitions("t", 7, validate_only=True)
            return {each for topic in (made, grown) for info in topic.partitions for each in info.replicas}

        async def told(update: Update) -> None:
            await store.updates.put(update)
            await asyncio.wait_for(store.updates.join(), 5)

        assert await used(2) == {1, 3}
        with pytest.raises(KafkaError, match=r"drained, \[2\], there are 2 brokers"):
            await used(3)
        by_hand = await directory.create("new", 1, {}, 1, {0: [2, 1]}, validate_only=True)
        assert by_hand.partitions[0].replicas == (2, 1), "an operator may say otherwise"
        await told(Update((Versioned("/drained/2", None, 2),)))
        assert await used(3) == {1, 2, 3}
        await told(Update((Versioned("/drained/3", {}, 3),)))
        assert await used(2) == {1, 2}
        await told(_whole(_TOPIC, *_brokers(1, 2, 3), cluster="ours"))
        assert await used(3) == {1, 2, 3}
    finally:
        await directory.close()


@pytest.mark.parametrize(("configs", "seen"), [({"newer": "1"}, True), ({"segment.bytes": "x"}, False)])
async def test_a_topic_that_makes_no_sense_hides_no_other(configs: dict[str, str], seen: bool) -> None:
    store = _Told()
    directory = ClusterDirectory(store, 1, {})
    strange = {"id": "0" * 31 + "2", "configs": configs, "partitions": [[-1, -1, [1], []]]}
    store.updates.put_nowait(_whole(Versioned("/topics/a", strange, 2), _TOPIC, cluster="ours"))
    await directory.load()
    try:
        assert "t" in directory.by_name
        assert ("a" in directory.by_name) is seen
    finally:
        await directory.close()


async def test_a_broker_whose_lease_ran_out_before_it_was_registered_takes_another() -> None:
    class Slow(_Told):
        granted = 0

        async def grant(self, seconds: float) -> str:
            self.granted += 1
            return str(self.granted)

        async def swap(self, changes: Sequence[Change], lease: str | None = None) -> bool:
            assert self.granted < 3
            await asyncio.sleep(0)
            return lease == "2"  # the first one is over by now

    registration = Registration(cast(EtcdMetadata, Slow()), BrokerInfo(1, "h", 1, "h", 2, None, 1), 1)
    async with asyncio.timeout(5):
        await registration._register()
    assert registration._lease == "2"


async def test_the_watch_goes_on_though_somebody_could_not_forget_a_topic() -> None:
    class Fails:
        def topic_changed(self, topic: Topic) -> None: ...

        def topic_deleted(self, topic: Topic) -> None:
            raise RuntimeError("its files are busy")

        def partition_changed(self, key: PartitionKey) -> None: ...

        def brokers_changed(self) -> None: ...

    store = _Told()
    directory = await _placing(store, _TOPIC)
    directory.listeners.append(Fails())
    try:
        for update in (_whole(cluster="ours"), _whole(_TOPIC, cluster="ours")):
            await store.updates.put(update)
            await asyncio.wait_for(store.updates.join(), 5)
        assert "t" in directory.by_name
    finally:
        await directory.close()


async def test_a_broker_is_registered_since_its_process_last_said_so_and_while_it_is_there() -> None:
    directory = ClusterDirectory(_Told(), 1, {})
    value = asdict(BrokerInfo(2, "h", 1, "h", 2, None, 1))
    for revision in (3, 7):
        directory.apply(Versioned("/brokers/2", value, revision))
        assert directory.registered == {2: revision}
    directory.apply(Versioned("/brokers/2", None, 8))
    assert directory.registered == {}
