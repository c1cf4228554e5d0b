"""What a broker believes of what etcd tells it, and what not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import cast

import pytest

from penstock.cluster.directory import ClusterDirectory
from penstock.cluster.etcd import EtcdMetadata
from penstock.cluster.membership import BrokerInfo, Registration
from penstock.cluster.metadata import Change, Update, Versioned

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
