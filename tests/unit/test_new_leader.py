"""What clients hear of a leader that was elected a moment ago, or is one no more (rules R8 and R12)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from simulation import SimBroker, World, simulate

from penstock.broker.catalog import Catalog
from penstock.broker.context import BrokerContext
from penstock.broker.fetch import FetchHandler
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.groups.takeover import take_over
from penstock.broker.offsets import EARLIEST, LATEST, OffsetHandlers
from penstock.broker.offsetslog import ConsumerOffsets
from penstock.broker.reply import Reply
from penstock.broker.stats import RequestStats
from penstock.cluster.topics import PartitionInfo, Topic
from penstock.log import seek
from penstock.log.partition import PartitionLog
from penstock.shm.layout import PartitionState
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.head import RequestHead, read_head
from penstock.wire.messages import read_request
from penstock.wire.records import Record, encode_batch
from rawclient import read_response, request_bytes


def play(scenario: Callable[[World], Awaitable[None]], brokers: int) -> None:
    world = World(7, brokers)

    async def whole() -> None:
        await world.start()
        await world.in_sync(brokers)
        await scenario(world)
        world.network.stalled.clear()
        await asyncio.sleep(3)
        world.check()

    try:
        simulate(whole())
    finally:
        world.close()


async def elected(world: World) -> PartitionLog:
    """The log of a new leader that has all that the last one acknowledged, and doesn't know it yet.

    The last one is dead, and the other survivor can't say how much it has.
    """
    leader = await world.leading()
    for _ in range(5):
        assert await world.produce() is ErrorCode.none
    survivors = [broker.number for broker in world.brokers.values() if broker is not leader]
    world.network.stalled |= {(survivors[0], survivors[1]), (survivors[1], survivors[0])}
    leader.crash()
    successor: SimBroker = await world.until(lambda: world.leader() if world.leader() is not leader else None)
    log = successor.led(world.key)
    assert log is not None
    assert log.epoch_start == log.log_end == 5
    return log


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


def test_offsets_are_not_available_before_the_epochs_start_is_committed_r8() -> None:
    async def scenario(world: World) -> None:
        handlers = OffsetHandlers(cast(BrokerContext, None))
        log = await elected(world)
        assert log.high_watermark < log.epoch_start
        for timestamp in (LATEST, 1_600_000_000_000):
            with pytest.raises(KafkaError) as refused:
                await handlers._find(log, timestamp)
            assert code_of(refused) is ErrorCode.offset_not_available
        assert (await handlers._find(log, EARLIEST)).offset == 0
        assert log.read(log.high_watermark, 1 << 20) is None  # a fetch there is empty, and no error
        world.network.stalled.clear()
        await world.until(lambda: log.high_watermark >= log.epoch_start)
        assert (await handlers._find(log, LATEST)).offset == 5

    play(scenario, brokers=3)


async def answers(log: PartitionLog, epoch: int) -> set[ErrorCode]:
    """What a client hears that thinks its leader is of that epoch, whatever it asks."""

    def asked(api: int, version: int, name: str, **wanted: int) -> tuple[RequestHead, Any]:
        topic = {name: "t", "partitions": [{**wanted, "current_leader_epoch": epoch}]}
        frame = memoryview(request_bytes(api, version, {"topics": [topic]}))[4:]
        head = read_head(frame)
        return head, read_request(head, frame).body

    catalog = Catalog()
    placed = (PartitionInfo(1, 0, (1,), (1,)),)
    catalog.put(Topic("t", uuid.UUID(bytes=log.topic_id), {}, placed, 0, log.config), [log])
    offsets = OffsetHandlers(cast(BrokerContext, SimpleNamespace(catalog=catalog)))
    fetch = FetchHandler(catalog, RequestStats(), 1 << 20).handle(*asked(1, 11, "topic", partition=0))
    assert isinstance(fetch, Reply)
    _, fetched = read_response(1, 11, b"".join(map(bytes, fetch.buffers))[4:])
    fetch.release()
    _, at = asked(2, 6, "name", partition_index=0, timestamp=EARLIEST)
    listed = await offsets.list_offsets(at, 6)
    _, end = asked(23, 3, "topic", partition=0, leader_epoch=0)
    ended = offsets.offset_for_leader_epoch(end, 3)
    return {
        ErrorCode(int(fetched.responses[0].partitions[0].error_code)),
        *(answer["topics"][0]["partitions"][0]["error_code"] for answer in (listed, ended)),
    }


def test_a_client_of_another_epoch_must_look_again_r12() -> None:
    async def scenario(world: World) -> None:
        first = (await world.leading()).led(world.key)
        assert first is not None
        before = first.leader_epoch
        for known in (before, -1):  # the second doesn't say
            assert await answers(first, known) == {ErrorCode.none}
        assert await answers(first, before + 1) == {ErrorCode.unknown_leader_epoch}
        log = await elected(world)
        assert log.leader_epoch > before
        assert await answers(log, before) == {ErrorCode.fenced_leader_epoch}

    play(scenario, brokers=3)


def test_a_coordinator_loads_nothing_before_it_knows_what_is_committed_r12() -> None:
    async def scenario(world: World) -> None:
        loaded: list[int] = []

        async def load(partition: int) -> None:
            loaded.append(partition)

        log = await elected(world)
        groups = cast(GroupCoordinator, SimpleNamespace(load=load))
        taking = asyncio.create_task(take_over(log, groups))
        await asyncio.sleep(0.05)
        assert log.high_watermark < log.epoch_start
        assert not loaded
        world.network.stalled.clear()
        await asyncio.wait_for(taking, 5)
        assert loaded == [log.partition]
        assert log.high_watermark >= log.epoch_start

    play(scenario, brokers=3)


def test_a_coordinator_that_was_deposed_while_it_waited_commits_nothing_r12() -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        log = leader.led(world.key)
        assert log is not None
        context = SimpleNamespace(catalog=SimpleNamespace(find=lambda topic, partition: log))
        offsets = ConsumerOffsets(cast(BrokerContext, context))
        encoded = encode_batch([Record(0, 1_700_000_000_000, b"group", b"7")])
        async with offsets._turns[0]:  # another commit is being written
            committing = asyncio.create_task(offsets.append(0, encoded))
            await asyncio.sleep(0)
            replicator = leader.replicator
            assert replicator is not None
            assert await replicator.hand_over(replicator.replicas[world.key], None, "a test")
            assert not log.leading
            assert log.control.state is PartitionState.FENCED
            end = log.log_end
        with pytest.raises(KafkaError) as deposed:
            await committing
        assert code_of(deposed) is ErrorCode.not_leader_or_follower
        assert log.log_end == end

    play(scenario, brokers=2)


# Tests of the tests: without its rule, each schedule above does its harm and is noticed.


def test_without_the_epochs_start_an_offset_goes_back_r8(monkeypatch: pytest.MonkeyPatch) -> None:
    find = OffsetHandlers._find

    async def at_once(self: OffsetHandlers, log: PartitionLog, timestamp: int) -> seek.Found:
        start, log.epoch_start = log.epoch_start, 0
        try:
            return await find(self, log, timestamp)
        finally:
            log.epoch_start = start

    monkeypatch.setattr(OffsetHandlers, "_find", at_once)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_offsets_are_not_available_before_the_epochs_start_is_committed_r8()


@pytest.mark.parametrize("handlers", ["fetch", "offsets"])
def test_without_a_look_at_its_epoch_a_client_stays_with_another_leader_r12(
    monkeypatch: pytest.MonkeyPatch, handlers: str
) -> None:
    monkeypatch.setattr(f"penstock.broker.{handlers}.check_epoch", lambda *_: None)
    with pytest.raises(AssertionError, match=r"ErrorCode\.none"):
        test_a_client_of_another_epoch_must_look_again_r12()


def test_without_the_epochs_start_a_coordinator_loads_too_little_r12(monkeypatch: pytest.MonkeyPatch) -> None:
    patiently = take_over

    async def at_once(log: PartitionLog, groups: GroupCoordinator) -> None:
        start, log.epoch_start = log.epoch_start, 0
        try:
            await patiently(log, groups)
        finally:
            log.epoch_start = start

    monkeypatch.setitem(globals(), "take_over", at_once)
    with pytest.raises(AssertionError, match=r"not \[0\]"):
        test_a_coordinator_loads_nothing_before_it_knows_what_is_committed_r12()


def test_a_coordinator_that_does_not_look_again_writes_when_it_is_deposed_r12(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ConsumerOffsets, "_check_leading", lambda *_: None)
    with pytest.raises(AssertionError, match="log_end"):
        test_a_coordinator_that_was_deposed_while_it_waited_commits_nothing_r12()
