"""Replicas that were moved away while their broker was down: when their files go, and when they stay."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulation import SimBroker, World, simulate

from penstock.cluster.metadata import Unavailable, Versioned
from penstock.cluster.partitions import NOBODY, Member, PartitionState, can_spare
from penstock.log.leftovers import Leftover
from penstock.log.store import LogStore
from penstock.shm import layout
from penstock.shm.control import PartitionControl
from penstock.wire.errors import ErrorCode

MOVED = PartitionState(1, 5, (1, 3), (Member(1, 11), Member(3, 13)), revision=50)
"""From broker 2, which has promised epoch 5."""
REGISTERED = {1: 10, 2: 20, 3: 30}


def test_the_log_of_a_replica_that_is_elsewhere_can_be_spared() -> None:
    assert can_spare(MOVED, 2, 5, REGISTERED)
    assert can_spare(replace(MOVED, leader=3, epoch=6), 2, 5, REGISTERED)
    assert can_spare(MOVED, 2, -1, REGISTERED)
    assert can_spare(replace(MOVED, lost_since=5, unclean_since=3), 2, 5, REGISTERED)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(replace(MOVED, replicas=(1, 3, 2)), id="it is placed here"),
        pytest.param(replace(MOVED, in_sync=(*MOVED.in_sync, Member(2, 12))), id="it counts"),
        pytest.param(replace(MOVED, declared=2), id="an operator wants it to lead"),
        pytest.param(replace(MOVED, leader=2), id="it leads"),
        pytest.param(replace(MOVED, leader=NOBODY), id="nobody leads"),
        pytest.param(replace(MOVED, in_sync=(Member(1, 11),)), id="the new one has not all yet"),
        pytest.param(replace(MOVED, epoch=4), id="etcd has gone back"),
        pytest.param(replace(MOVED, epoch=6, lost_since=6), id="the only replica lost something"),
        pytest.param(replace(MOVED, epoch=6, unclean_since=6), id="an operator gave something up"),
    ],
)
def test_a_log_that_may_be_needed_is_not_spared(state: PartitionState) -> None:
    assert not can_spare(state, 2, 5, REGISTERED)


@pytest.mark.parametrize("broker", [1, 3])
@pytest.mark.parametrize("since", [None, 51])
def test_a_log_is_not_spared_while_those_that_should_have_it_may_have_lost_theirs(
    broker: int, since: int | None
) -> None:
    """They are away, or came back since the key was last changed."""
    registered = {each: at for each, at in REGISTERED.items() if each != broker}
    assert not can_spare(MOVED, 2, 5, registered if since is None else registered | {broker: since})


def test_a_log_is_not_spared_while_a_leader_that_is_not_in_the_list_is_away() -> None:
    state = replace(MOVED, leader=4, in_sync=(*MOVED.in_sync, Member(4, 14)))
    assert not can_spare(state, 2, 5, REGISTERED)
    assert can_spare(state, 2, 5, REGISTERED | {4: 40})


# On a simulated cluster


def directories(world: World, broker: SimBroker) -> tuple[Path, Path]:
    topic_id, partition = world.key
    memory = layout.broker_dir(broker.root / "memory", broker.number)
    disk = broker.root / "disk" / "topics" / f"t.{topic_id.hex()}"
    return disk / str(partition), layout.partition_dir(memory, topic_id, partition)


def has_files(world: World, broker: SimBroker) -> bool:
    return any(directory.exists() for directory in directories(world, broker))


def after_a_move(scenario: Callable[[World, SimBroker], Awaitable[None]]) -> None:
    """Of a partition on brokers 1 and 2 to 1 and 3, while 2 is down."""
    world = World(7, 3, None, replicas=2)

    async def whole() -> None:
        await world.start()
        await world.in_sync(2)
        await world.until(lambda: world.brokers[1].led(world.key))
        for _ in range(50):
            assert await world.produce() is ErrorCode.none
        second = world.brokers[2]
        crash(world, second)
        world.move(1, 3)
        await world.until(
            lambda: world.state is not None and {m.broker for m in world.state.in_sync} == {1, 3}
        )
        assert all(directory.exists() for directory in directories(world, second))
        await scenario(world, second)

    try:
        simulate(whole())
    finally:
        world.close()


def crash(world: World, *brokers: SimBroker) -> None:
    """And their leases run out."""
    for broker in brokers:
        broker.crash()
        world.keys.put(f"/brokers/{broker.number}", None)


async def goes(world: World, broker: SimBroker) -> None:
    await world.until(lambda: not has_files(world, broker))
    assert world.key not in broker.store.state.load()
    await world.until(world.settled)
    world.check()
    assert await world.produce() is ErrorCode.none


async def stays(world: World, broker: SimBroker) -> None:
    for _ in range(100):
        await asyncio.sleep(0.05)
        assert all(directory.exists() for directory in directories(world, broker))


def test_a_replica_that_was_moved_away_while_its_broker_was_down_goes_when_it_is_back() -> None:
    async def scenario(world: World, second: SimBroker) -> None:
        await second.start()
        await goes(world, second)
        world.move(1, 2)  # and it can come back
        await world.until(lambda: world.settled() and second.log(world.key) is not None)
        world.check()

    after_a_move(scenario)


def test_a_deletion_that_was_cut_short_goes_on_at_the_next_start() -> None:
    async def scenario(world: World, second: SimBroker) -> None:
        _, memory = directories(world, second)
        shutil.rmtree(memory)
        await second.start(lambda store: store.state.forget(*world.key))
        await goes(world, second)

    after_a_move(scenario)


def test_a_replica_is_kept_until_those_that_have_it_are_back() -> None:
    async def scenario(world: World, second: SimBroker) -> None:
        first, third = world.brokers[1], world.brokers[3]
        crash(world, first, third)
        await second.start()
        await stays(world, second)
        await first.start()
        await stays(world, second)
        await third.start()
        await goes(world, second)

    after_a_move(scenario)


def test_a_replica_is_kept_when_those_that_have_it_come_back_without() -> None:
    """For a moment the key still says that they have all, and they live."""

    async def scenario(world: World, second: SimBroker) -> None:
        first, third = world.brokers[1], world.brokers[3]
        crash(world, first, third)
        await second.start()
        for broker in (third, first):
            broker.lose_storage()
            await broker.start()
        await stays(world, second)

    after_a_move(scenario)


def test_a_replica_is_kept_when_the_only_one_left_lost_its_log_and_went_on() -> None:
    """It says so in the key, after it has registered: that it is the leader since proves nothing."""

    async def scenario(world: World, second: SimBroker) -> None:
        first, third = world.brokers[1], world.brokers[3]
        world.move(1)
        await world.in_sync(1)
        crash(world, first)
        first.lose_storage()
        await first.start()
        await world.until(lambda: first.led(world.key))
        await second.start()
        await stays(world, second)
        world.move(1, 3)  # two copies of what is left are not what was lost
        await world.in_sync(2)
        assert third.log(world.key) is not None
        await stays(world, second)

    after_a_move(scenario)


def test_a_replica_is_kept_while_the_new_one_is_not_in_sync() -> None:
    async def scenario(world: World, second: SimBroker) -> None:
        crash(world, world.brokers[3])
        await world.in_sync(1)
        await second.start()
        await stays(world, second)
        await world.brokers[3].start()
        await goes(world, second)

    after_a_move(scenario)


def test_a_replica_is_kept_while_etcd_cannot_be_asked() -> None:
    async def scenario(world: World, second: SimBroker) -> None:
        real = second.metadata.get

        async def get(key: str) -> Any:
            raise Unavailable("away, or it has gone back")

        second.metadata.get = get  # type: ignore[method-assign]
        await second.start()
        await stays(world, second)
        second.metadata.get = real  # type: ignore[method-assign]
        await goes(world, second)

    after_a_move(scenario)


def test_a_replica_is_kept_while_etcd_tells_of_another_cluster() -> None:
    async def scenario(world: World, second: SimBroker) -> None:
        await second.start()
        second.directory.foreign = True
        await stays(world, second)
        second.directory.foreign = False
        await goes(world, second)

    after_a_move(scenario)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_replica_that_promised_a_later_epoch_than_etcd_knows_is_kept(where: str) -> None:
    async def scenario(world: World, second: SimBroker) -> None:
        _, memory = directories(world, second)
        if where == "memory":
            PartitionControl.open(memory, writable=True).promised_epoch = 9
        await second.start(lambda store: _promise(store, world, 9) if where == "disk" else None)
        await stays(world, second)

    after_a_move(scenario)


def test_a_replica_that_was_ahead_of_etcd_once_is_kept_when_epochs_have_gone_on() -> None:
    """Without a word from anybody it would be gone a few elections after etcd was restored."""

    async def scenario(world: World, second: SimBroker) -> None:
        assert world.state is not None
        ahead = world.state.epoch + 1
        await second.start(lambda store: _promise(store, world, ahead))
        await stays(world, second)
        for again in (False, True):
            for number in (1, 3):
                crash(world, world.brokers[number])
                await world.in_sync(1)
                await world.brokers[number].start()
                await world.in_sync(2)
            assert world.state.epoch > ahead
            await stays(world, second)
            if not again:
                crash(world, second)
                await second.start()
        world.move(1, 2)  # an operator decides
        await world.until(lambda: world.settled() and second.log(world.key) is not None)
        world.move(1, 3)
        await world.until(lambda: not has_files(world, second))

    after_a_move(scenario)


def _promise(store: LogStore, world: World, epoch: int) -> None:
    store.state.save([replace(store.state.load()[world.key], promised_epoch=epoch)])


def test_a_replica_that_is_placed_here_again_waits_until_what_was_left_is_gone() -> None:
    async def scenario(world: World, second: SimBroker) -> None:
        deleting = asyncio.Event()

        def slowly(store: LogStore) -> None:
            real = store.delete_leftover

            async def delete(topic: str, key: tuple[bytes, int]) -> None:
                deleting.set()
                await asyncio.sleep(3)
                await real(topic, key)

            store.delete_leftover = delete  # type: ignore[method-assign]

        await second.start(slowly)
        await deleting.wait()
        world.move(1, 3, 2)
        await asyncio.sleep(1)
        assert second.log(world.key) is None
        await world.in_sync(3)
        await world.until(world.settled)
        await asyncio.sleep(5)
        assert all(directory.exists() for directory in directories(world, second))
        world.check()

    after_a_move(scenario)


def test_a_replica_that_is_placed_here_again_before_the_key_is_read_is_kept() -> None:
    async def scenario(world: World, second: SimBroker) -> None:
        storage = {2: 0}
        real = second.metadata.get

        async def get(key: str) -> Any:
            world.move(1, 3, 2)
            second.metadata.get = real  # type: ignore[method-assign]
            return await real(key)

        second.metadata.get = get  # type: ignore[method-assign]
        await second.start(lambda store: storage.update({2: store.state.load()[world.key].storage_id}))
        await world.in_sync(3)
        assert world.state is not None
        assert world.state.has(2, storage[2]), "it was copied anew"
        assert second.replicator is not None
        assert not second.replicator._leftovers
        await world.until(world.settled)
        world.check()

    after_a_move(scenario)


def test_a_replica_that_is_placed_here_again_while_files_are_looked_for_is_none_of_them() -> None:
    async def scenario(world: World, second: SimBroker) -> None:
        looked = asyncio.Event()

        def slowly(store: LogStore) -> None:
            real = store.find_leftovers

            async def find() -> dict[tuple[bytes, int], Leftover]:
                found = await real()
                assert world.key in found
                world.move(1, 3, 2)
                await world.in_sync(3)
                looked.set()
                return found

            store.find_leftovers = find  # type: ignore[method-assign]

        await second.start(slowly)
        await looked.wait()
        await world.until(world.settled)
        assert second.replicator is not None
        assert not second.replicator._leftovers
        world.check()

    after_a_move(scenario)


def test_a_replica_is_kept_when_the_key_that_is_read_says_that_it_may_be_needed() -> None:
    async def scenario(world: World, second: SimBroker) -> None:
        real = second.metadata.get

        async def get(key: str) -> Any:
            second.metadata.get = real  # type: ignore[method-assign]
            crash(world, world.brokers[3])
            await world.in_sync(1)
            return await real(key)

        second.metadata.get = get  # type: ignore[method-assign]
        second.metadata.late = 20
        await second.start()
        await stays(world, second)
        second.metadata.late = 0
        await world.brokers[3].start()
        await goes(world, second)

    after_a_move(scenario)


def test_a_replica_of_a_topic_that_is_deleted_meanwhile_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World, second: SimBroker) -> None:
        real = second.metadata.get

        async def get(key: str) -> Any:
            if world.key[0] in second.directory.by_id:
                world.keys.values.pop("/topics/t", None)
                second.directory.apply(Versioned("/topics/t", None, 0))
            return await real(key)

        second.metadata.get = get  # type: ignore[method-assign]
        await second.start()
        await stays(world, second)
        assert "could not be deleted" not in caplog.text

    after_a_move(scenario)


def test_files_of_topics_that_the_cluster_does_not_know_stay_and_are_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World, second: SimBroker) -> None:
        disk, memory = directories(world, second)
        size = sum(path.stat().st_size for each in (disk, memory) for path in each.iterdir())
        world.keys.put("/topics/t", None)
        await second.start()
        await stays(world, second)
        (told,) = [record.message for record in caplog.records if "does not know" in record.message]
        assert f"1 partitions that take {size / (1 << 20):.1f} MiB" in told
        assert f"remove {disk.parent}, {memory.parent}" in told

    caplog.set_level(logging.WARNING)
    after_a_move(scenario)
