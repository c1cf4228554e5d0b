"""`penstock cluster drain` and what happens in the cluster at the same moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import pytest
from simulation import Keys, SimMetadata

from penstock.cli import cluster
from penstock.cli.terminal import CommandFailed
from penstock.cluster.directory import ClusterDirectory
from penstock.cluster.membership import BrokerInfo
from penstock.cluster.metadata import Change


class Etcd(SimMetadata):
    """A topic is made, on brokers 3 and 1, in the moment somebody is about to be marked."""

    def __init__(self, brokers: Sequence[int]) -> None:
        self.keys = Keys()
        super().__init__(self.keys, random.Random(7))
        for number in brokers:
            self.keys.put(f"/brokers/{number}", asdict(BrokerInfo(number, "h", 1, "h", 2, None, 1)))

    async def swap(self, changes: Sequence[Change]) -> bool:
        if changes[0].key.startswith("/drained/") and "/topics/t" not in self.keys.values:
            self.place([3, 1])
        return await super().swap(changes)

    def place(self, replicas: list[int]) -> None:
        topic = {"id": "0" * 31 + "1", "configs": {}, "partitions": [[-1, -1, replicas, []]]}
        self.keys.put("/topics/t", topic)
        first = {"leader": replicas[0], "epoch": 0, "replicas": replicas, "in_sync": [[replicas[0], 1]]}
        asyncio.get_running_loop().call_later(0.1, self.keys.put, self.partition, first)

    partition = f"/partitions/{'0' * 31}1/0"

    @property
    def marked(self) -> bool:
        return "/drained/3" in self.keys.values


@pytest.fixture
def drain(monkeypatch: pytest.MonkeyPatch) -> Any:
    async def run(etcd: Etcd) -> None:
        @asynccontextmanager
        async def directory(endpoints: str, prefix: str) -> AsyncIterator[ClusterDirectory]:
            found = ClusterDirectory(etcd, -1, {})
            await found.load()
            try:
                yield found
            finally:
                await found.close()

        monkeypatch.setattr(cluster, "_directory", directory)
        await cluster._drain(3, "", "", 0)

    return run


async def test_a_topic_that_is_made_while_its_broker_is_marked_is_moved_too(drain: Any) -> None:
    etcd = Etcd([1, 2, 3])
    await drain(etcd)
    assert etcd.marked
    assert etcd.keys.values[etcd.partition].value["replicas"] == [1, 2]


@pytest.mark.parametrize("before", [False, True])
async def test_a_drain_without_a_plan_leaves_the_mark_as_it_was(drain: Any, before: bool) -> None:
    etcd = Etcd([3])
    etcd.place([3])
    await asyncio.sleep(0.2)
    if before:
        etcd.keys.put("/drained/3", {})
    with pytest.raises(CommandFailed, match="nowhere to go"):
        await drain(etcd)
    assert etcd.marked is before
