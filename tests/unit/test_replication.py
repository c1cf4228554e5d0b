"""The rules of replication (docs/replication.md), each by its bad schedule, on a simulated cluster."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from log_rig import LogRig, everything, put, take
from simulation import SimBroker, SimEnd, World, interpreted, records, simulate

from penstock.broker.admin import AdminHandlers
from penstock.broker.catalog import Catalog
from penstock.broker.metrics.replication import replication
from penstock.broker.server import Broker
from penstock.cluster import partitions
from penstock.cluster.metadata import Change, Unavailable, Versioned
from penstock.cluster.partitions import NOBODY, Member, PartitionKey, PartitionState
from penstock.log.config import Durability
from penstock.log.partition import PartitionLog, WouldLoseCommitted
from penstock.log.pool import MemoryExhausted
from penstock.log.store import LogStore, PartitionPlace
from penstock.replication import frames, leadership
from penstock.replication.frames import Draft, MalformedFrame, Section
from penstock.replication.leadership import Backup, Leadership, common_prefix
from penstock.replication.link import Link
from penstock.replication.replica import Replica
from penstock.replication.replicator import Patience, Replicator
from penstock.shm.control import PartitionControl
from penstock.shm.layout import PartitionState as ControlState
from penstock.shm.memory import SegmentMemory
from penstock.wire import batch
from penstock.wire.batch import Buffer
from penstock.wire.errors import ErrorCode, KafkaError

Scenario = Callable[[World], Awaitable[None]]


@pytest.fixture
def play() -> Iterator[Callable[..., None]]:
    worlds: list[World] = []

    def run(scenario: Scenario, *, brokers: int = 2, configs: dict[str, str] | None = None) -> None:
        world = World(7, brokers, configs)
        worlds.append(world)

        async def whole() -> None:
            await world.start()
            await world.in_sync(brokers)
            await scenario(world)

        simulate(whole())

    yield run
    for world in worlds:
        world.close()


def log_of(broker: SimBroker, world: World) -> PartitionLog:
    log = broker.log(world.key)
    assert log is not None
    return log


def other(world: World, broker: SimBroker) -> SimBroker:
    return next(each for each in world.brokers.values() if each is not broker)


def shown(broker: SimBroker, world: World) -> ControlState:
    """What readers on that broker's machine find in its shared memory."""
    return PartitionControl.open(log_of(broker, world).memory_directory).state


# Elections


def test_a_backup_takes_over_within_a_second_and_has_everything(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        for _ in range(50):
            assert await world.produce() is ErrorCode.none
        started = asyncio.get_running_loop().time()
        leader.crash()
        following = await world.until(lambda: other(world, leader).led(world.key))
        assert asyncio.get_running_loop().time() - started < 1
        # A request that came before it led was refused: what is behind that one is not out of order.
        assert log_of(other(world, leader), world).gaps_excused_until > 0
        assert await world.produce(following) is ErrorCode.none
        assert len(records(following)) == 51
        world.check()

    play(scenario)


def test_a_replica_that_lost_its_storage_neither_stands_nor_counts_r1(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        for _ in range(20):
            await world.produce()
        # It comes back empty before its leader has dropped it, and the leader dies.
        leader.metadata.away = True
        backup.crash()
        backup.lose_storage()
        leader.crash()
        world.keys.put(f"/brokers/{leader.number}", None)
        await backup.start()
        await asyncio.sleep(10)
        assert backup.led(world.key) is None, "elected with an empty log"
        leader.metadata.away = False
        await leader.start()
        await world.in_sync(2)
        await asyncio.sleep(1)
        world.check()
        assert len(records(log_of(backup, world))) == 20

    play(scenario)


def test_clients_are_not_sent_to_a_leader_that_was_just_lost(play: Callable[..., None]) -> None:
    """librdkafka that is told of a dead leader waits for that one, and asks again much later."""

    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        assert backup.replicator is not None
        assert not backup.replicator.doubts(world.key, leader.number)
        for metadata in world.brokers.values():
            metadata.metadata.away = True  # nobody can be elected
        leader.crash()
        await asyncio.sleep(0.4)
        assert backup.replicator.doubts(world.key, leader.number)
        assert not backup.replicator.doubts(world.key, backup.number)
        await asyncio.sleep(2)
        assert not backup.replicator.doubts(world.key, leader.number), "only for a while: it may be us"

    play(scenario)


def test_a_leader_that_lost_its_storage_leaves_it_to_the_others_r1(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        for _ in range(20):
            await world.produce()
        leader.crash()
        backup.crash()
        leader.lose_memory()
        await leader.start()
        await backup.start()
        led = await world.until(lambda: backup.led(world.key))
        assert len(records(led)) == 20
        await world.in_sync(2)
        world.check()

    play(scenario)


def test_a_listed_replica_is_not_copied_anew_after_an_unclean_election_r1(play: Callable[..., None]) -> None:
    """Its connection blips while etcd is away, and its leader dies: it is elected with what it has then."""

    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        for _ in range(20):
            assert await world.produce() is ErrorCode.none
        state = world.state
        assert state is not None
        world.keys.put(
            partitions.path_of(world.key), partitions.encode(partitions.declare(state, leader.number))
        )
        await world.until(lambda: world.state is not None and world.state.unclean_since > state.epoch)
        await world.in_sync(2)  # it was copied anew, and is listed again; nothing is written since
        assert backup.replicator is not None
        replica = backup.replicator.replicas[world.key]
        for each in world.brokers.values():
            each.metadata.away = True
        reset = backup.store.reset

        def reset_and_die(partition: PartitionLog, offset: int) -> None:
            reset(partition, offset)
            leader.crash()

        backup.store.reset = reset_and_die  # type: ignore[method-assign]
        before = replica.attachment
        assert leader.replicator is not None
        leader.replicator.links[backup.number].hang_up()
        await world.until(lambda: not leader.alive or replica.attachment not in (None, before))
        await asyncio.sleep(0.05)
        leader.crash()
        for each in world.brokers.values():
            each.metadata.away = False
        led = await world.until(lambda: backup.led(world.key))
        assert len(records(led)) == 20
        world.check()

    play(scenario)


async def test_a_swap_without_an_answer_keeps_both_sets_in_force_r2(tmp_path: Path) -> None:
    me, one, two = Member(1, 11), Member(2, 22), Member(3, 33)
    rig = LogRig(tmp_path)
    (log,) = rig.open()
    log.replicated = True
    led = Leadership(log, PartitionState(1, 5, (1, 2, 3), (me, one)), me, 0.0)
    led.backups[2].attach(22, 10, 10, 0.0)
    led.backups[3].attach(33, 4, 4, 0.0)
    try:
        for _ in range(10):
            put(log, [b"x"])
        led.propose(frozenset({me, one, two}))
        led.advance()
        assert log.high_watermark == 4, "a member that etcd may already list must have what is committed"
        led.propose(frozenset({me}))
        for _ in range(2):
            put(log, [b"y"])
        led.advance()
        assert log.high_watermark == 10, "a member that etcd may still list must have it too"
        led.known = frozenset({me})
        led.settled()
        assert log.high_watermark == 12
    finally:
        await rig.crash()
        rig.close()


def test_a_restarted_leader_raises_the_epoch_r3(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        await world.produce()
        before = log_of(leader, world).leader_epoch
        other(world, leader).crash()
        await world.in_sync(1)
        leader.crash()
        await leader.start()
        log = await world.until(lambda: leader.led(world.key))
        assert log.leader_epoch > before
        assert log.epochs[-1].epoch == log.leader_epoch
        await other(world, leader).start()
        await world.in_sync(2)
        world.check()

    play(scenario)


def test_a_promise_survives_the_process_and_a_restored_etcd_r3(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        await world.produce()
        assert log_of(backup, world).promise(1000)
        backup.crash()
        await backup.start()
        log = await world.until(lambda: backup.log(world.key))
        assert log.control.promised_epoch == 1000
        assert not log.promise(999)
        # Its leader is refused, and leads on above the promise instead of for ever below it.
        await world.until(lambda: world.state is not None and world.state.epoch > 1000)
        await world.in_sync(2)
        await asyncio.sleep(1)
        world.check()

    play(scenario)


def test_the_next_epoch_is_above_all_that_was_ever_heard_of_r3() -> None:
    state = PartitionState(1, 7, (1, 2), (Member(1, 1), Member(2, 2)))
    stood = partitions.stand(state, (1, 2), Member(2, 2), 12, "test", without=1)
    assert stood is not None
    assert (stood.epoch, stood.leader, stood.in_sync) == (13, 2, (Member(2, 2),))
    assert partitions.stand(state, (1, 2), Member(2, 99), 12, "another storage") is None
    assert partitions.stand(state, (1, 2), Member(3, 3), 12, "no replica") is None
    lost = partitions.stand(PartitionState(1, 7, (1,), (Member(1, 1),)), (1,), Member(1, 9), 7, "alone")
    assert lost is not None
    assert lost.in_sync == (Member(1, 9),)
    resigned = partitions.resign(state, Member(1, 99))
    assert resigned is not None
    assert (resigned.leader, resigned.in_sync) == (NOBODY, (Member(2, 2),))
    assert partitions.resign(state, Member(1, 1)) is None


def test_an_acknowledgement_of_an_old_epoch_or_before_the_handshake_counts_for_nothing_r4(
    play: Callable[..., None],
) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        assert leader.replicator is not None
        replica = leader.replicator.replicas[world.key]
        led = replica.leadership
        assert led is not None
        link = leader.replicator.links[backup.number]
        world.network.stalled.add((leader.number, backup.number))
        waiting = asyncio.create_task(world.produce(replica.log, timeout=0.2))
        await asyncio.sleep(0.01)
        end = replica.log.log_end

        def say(epoch: int) -> None:
            body = b"".join(bytes(b) for b in frames.acks(0, [(world.key, epoch, end)]))
            link.frame(link._live, frames.Kind.ACK, memoryview(body)[frames.HEAD.size :])

        say(led.epoch - 1)
        assert replica.log.high_watermark < end, "an old tail was counted as the new record"
        led.backups[backup.number].detach()
        say(led.epoch)
        assert replica.log.high_watermark < end, "counted without a handshake"
        world.network.stalled.clear()
        await waiting

    play(scenario)


def test_an_answer_to_a_frame_counts_for_its_connection_and_its_handshake_only_r4(
    play: Callable[..., None],
) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        assert leader.replicator is not None
        replica = leader.replicator.replicas[world.key]
        link = leader.replicator.links[backup.number]
        live = link._live

        def its() -> Backup:
            led = replica.leadership  # another one after an election
            assert led is not None
            return led.backups[backup.number]

        async def send() -> tuple[asyncio.Task[ErrorCode], int]:
            """A record that doesn't get through for now, and the number of its frame."""
            await world.in_sync(2)
            await world.until(lambda: replica.leadership and its().streaming)
            world.network.stalled.add((leader.number, backup.number))
            waiting = asyncio.create_task(world.produce(replica.log, timeout=3))
            await asyncio.sleep(0.01)
            while not live.sent[0].shipments:  # a heartbeat before it
                live.answered(live.sent[0].number)
            return waiting, live.sent[0].number

        def say(number: int) -> None:
            body = b"".join(bytes(b) for b in frames.taken(number))
            link.frame(live, frames.TAKEN, memoryview(body)[frames.HEAD.size :])

        lost, old = await send()
        assert live.channel is not None
        live.channel.close()
        world.network.stalled.clear()
        assert await lost is ErrorCode.none
        waiting, number = await send()
        end = replica.log.log_end
        with contextlib.suppress(MalformedFrame):
            say(old)
        assert replica.log.high_watermark < end, "the answer to a frame of the connection before was counted"
        with contextlib.suppress(MalformedFrame):
            say(number + 99)
        assert replica.log.high_watermark < end, "the answer to a frame that was never sent was counted"
        its().handshake += 1
        say(number)
        assert replica.log.high_watermark < end, "counted though another handshake had begun"
        assert not live.sent or live.sent[0].number > number
        link.hang_up()
        world.network.stalled.clear()
        assert await waiting is ErrorCode.none
        waiting, number = await send()
        say(number)
        assert replica.log.high_watermark == replica.log.log_end, "a good answer was not counted"
        link.hang_up()
        world.network.stalled.clear()
        assert await waiting is ErrorCode.none

    play(scenario)


def test_a_backup_answers_for_a_frame_only_if_all_of_it_counts_r4(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        ours, its = log_of(leader, world), log_of(backup, world)
        assert backup.replicator is not None
        attachment = backup.replicator.replicas[world.key].attachment
        assert attachment is not None
        inbound = attachment.inbound
        said: list[tuple[int, bytes]] = []

        class Keeps:
            is_stuck = is_closed = False

            def send(self, buffers: Sequence[Buffer]) -> None:
                content = b"".join(bytes(buffer) for buffer in buffers)
                said.append((content[4], content[5:]))

            def close(self) -> None: ...

        world.network.stalled.add((leader.number, backup.number))
        channel, inbound.channel = inbound.channel, Keeps()
        number = 1000

        def send(*sections: Section) -> list[tuple[int, bytes]]:
            nonlocal number
            number += 1
            said.clear()
            draft = Draft()
            for each in sections:
                watermark, start = each.high_watermark, each.log_start
                draft.add(each.key, each.epoch, each.base, watermark, start, each.records)
            body = b"".join(bytes(b) for b in draft.finish(number))
            inbound.frame(frames.DATA, memoryview(body)[frames.HEAD.size :])
            return said

        async def record() -> Section:
            """The next one of the leader's log, as it would be sent."""
            base, position = ours.log_end, ours.segments[-1].size
            task = asyncio.create_task(world.produce(ours, timeout=0.001))
            await task
            view = ours.segments[-1].bytes_between(position, ours.segments[-1].size)
            return Section(world.key, attachment.epoch, base, ours.high_watermark, 0, view)

        def is_answered_by_partition(ends: list[frames.Acknowledged]) -> bool:
            kind, body = said[-1]
            return kind == frames.ACK and frames.read_acks(memoryview(body)) == (number, ends)

        send(await record())
        assert [(kind, frames.read_taken(memoryview(body))) for kind, body in said] == [
            (frames.TAKEN, number)
        ]
        assert its.log_end == ours.log_end

        good = await record()
        send(good, Section((b"?" * 16, 0), 1, 0, 0, 0, None))
        assert said[0][0] == frames.Kind.REFUSED
        assert is_answered_by_partition([(world.key, attachment.epoch, its.log_end)])

        send(good)  # again: it doesn't go on from where the log ends
        assert said[0][0] == frames.Kind.REFUSED
        assert is_answered_by_partition([])

        late = await record()
        late.epoch -= 1
        send(late)
        assert said[0][0] == frames.Kind.REFUSED
        assert is_answered_by_partition([])
        late.epoch += 1

        its.configure(replace(its.config, durability=Durability.DISK))
        send(late)
        assert its.log_end == ours.log_end
        assert its.durable_end < its.log_end
        assert is_answered_by_partition([(world.key, attachment.epoch, its.durable_end)])
        its.configure(replace(its.config, durability=Durability.MEMORY))

        attachment.park(good, memoryview(b"waits for memory"))
        send(await record())
        assert is_answered_by_partition([])
        attachment.parked.clear()
        inbound.channel = channel

    play(scenario)


async def test_the_common_prefix_ends_where_the_last_shared_epoch_does_r4(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    (log,) = rig.open()
    log.begin_epoch(3)
    for _ in range(4):
        put(log, [b"x"])
    log.begin_epoch(6)
    put(log, [b"y"])
    first = log.epochs[-2].start_offset
    assert common_prefix(log, [(3, first)], first + 2) == first + 2
    assert common_prefix(log, [(3, first), (5, first + 3)], first + 9) == first + 3
    assert common_prefix(log, [(3, first), (6, first + 4)], first + 9) == log.log_end
    assert common_prefix(log, [(3, first)], first + 9) == first + 4, "an old tail behind the end of its epoch"
    assert common_prefix(log, [(4, 0)], 5) is None
    await rig.crash()
    rig.close()


def test_an_epoch_that_was_cut_off_is_forgotten_though_the_disk_has_not_heard_of_it_r4(
    play: Callable[..., None],
) -> None:
    async def scenario(world: World) -> None:
        first = await world.leading()
        second, third = (broker for broker in world.brokers.values() if broker is not first)
        for _ in range(5):
            assert await world.produce() is ErrorCode.none
        # The first one's last records reach the second only, which then leads in a new epoch behind them.
        shared = log_of(first, world).log_end
        world.network.stalled |= {(first.number, third.number), (third.number, first.number)}
        orphans = [asyncio.create_task(world.produce(log_of(first, world))) for _ in range(10)]
        await world.until(lambda: log_of(second, world).log_end == shared + 10, 0.1)
        third.metadata.away = True
        world.network.stalled |= {(second.number, third.number), (third.number, second.number)}
        first.crash()
        world.keys.put(f"/brokers/{first.number}", None)
        await world.until(lambda: second.led(world.key))
        await second.store.write_behind.saved()
        # The third one leads without them, and others are acknowledged in their place.
        second.metadata.away, third.metadata.away = True, False
        lease = f"/brokers/{second.number}"
        registered = world.keys.values[lease].value
        world.keys.put(lease, None)
        log = await world.until(lambda: third.led(world.key))
        assert log.log_end == shared
        for _ in range(30):
            assert await world.produce(log) is ErrorCode.none
        # The second one gets those, and is killed before its disk hears of it.
        second.disk.slowest = 1000.0
        world.network.stalled.clear()
        second.metadata.away = False
        world.keys.put(lease, registered)
        await world.until(lambda: log_of(second, world).log_end == log.log_end and not second.led(world.key))
        assert second.store.state.load()[world.key].epochs[-1][1] == shared + 10
        second.crash()
        await second.start()
        await world.in_sync(2)
        third.crash()
        world.keys.put(f"/brokers/{third.number}", None)
        await world.until(lambda: second.led(world.key))
        await first.start()
        await world.until(
            lambda: world.state is not None and first.number in {m.broker for m in world.state.in_sync}
        )
        await asyncio.gather(*orphans)
        assert await world.produce() is ErrorCode.none
        await asyncio.sleep(1)
        await third.start()
        await world.in_sync(3)
        world.check()

    play(scenario, brokers=3)


async def test_truncation_takes_records_and_producers_back_into_a_new_segment_r5(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    (log,) = rig.open()
    try:
        log.replicated = True
        put(log, [b"a", b"b"], producer=(9, 0, 0))
        log.commit(2)
        segment = log.segments[-1]
        put(log, [b"c"], producer=(9, 0, 2))
        put(log, [b"d"], producer=(9, 0, 3))
        before = bytes(segment.bytes_between(0, segment.size))
        rig.store.truncate(log, 3)
        assert log.log_end == 3
        assert log.segments[-1] is not segment, "what others still look at is never written again"
        # The record that was cut is new again, the one before it is not.
        assert put(log, [b"d"], producer=(9, 0, 3)).duplicate is False
        assert put(log, [b"c"], producer=(9, 0, 2)).duplicate is True
        log.commit(log.log_end)
        assert [record.value for record in everything(log)] == [b"a", b"b", b"c", b"d"]
        memory = segment.memory
        assert memory is not None
        assert bytes(memory.view[4096 : 4096 + len(before)]) == before
        with pytest.raises(WouldLoseCommitted):
            rig.store.truncate(log, 1)
        await rig.store.write_behind.durable()
        await rig.crash()
        (again,) = rig.open()
        assert [record.value for record in everything(again)] == [b"a", b"b", b"c", b"d"]
    finally:
        await rig.crash()
        rig.close()


async def test_a_truncated_log_is_the_same_from_disk(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    (log,) = rig.open({"segment.bytes": "4096"})
    log.replicated = True
    for number in range(60):
        put(log, [b"%03d" % number * 60])
    await rig.store.write_behind.durable()
    log.commit(20)
    rig.store.truncate(log, 25)
    for number in range(25, 30):
        put(log, [b"new-%d" % number])
    log.commit(30)
    expected = [record.value for record in everything(log)]
    await rig.store.stop()
    rig.lose_memory()
    (again,) = rig.open({"segment.bytes": "4096"})
    assert [record.value for record in everything(again)] == expected
    await rig.crash()
    rig.close()


def _refuse_segments(monkeypatch: pytest.MonkeyPatch, log: PartitionLog) -> None:
    rename = os.rename

    def fails(source: Path, target: Path) -> None:
        if target.parent == log.memory_directory:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails)


@pytest.mark.parametrize("anew", [False, True])
async def test_a_cut_without_a_segment_to_go_on_in_is_the_same_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    rig = LogRig(tmp_path)
    (log,) = rig.open({"segment.bytes": "4096"})
    log.replicated = True
    for number in range(60):
        put(log, [b"%03d" % number * 60], producer=(9, 0, number))
    await rig.store.write_behind.durable()
    kept = 0 if anew else 25
    _refuse_segments(monkeypatch, log)
    (rig.store.reset if anew else rig.store.truncate)(log, kept)
    monkeypatch.undo()
    assert log.log_end == kept
    for number in range(kept, 30):
        assert put(log, [b"new-%d" % number], producer=(9, 0, number)).duplicate is False
    log.commit(30)
    expected = [record.value for record in everything(log)]
    assert len(expected) == 30
    await rig.store.stop()
    assert sum(path.stat().st_size for path in log.disk_directory.glob("*.log")) == sum(
        segment.size for segment in log.segments
    )
    rig.lose_memory()
    (again,) = rig.open({"segment.bytes": "4096"})
    assert [record.value for record in everything(again)] == expected
    await rig.crash()
    rig.close()


async def test_a_cut_without_a_segment_to_go_on_in_is_the_same_log_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = LogRig(tmp_path)
    (log,) = rig.open({"segment.bytes": "4096"})
    log.replicated = True
    for number in range(60):
        put(log, [b"%03d" % number * 60])
    await rig.store.write_behind.durable()
    storage, kept = log.storage_id, 25

    _refuse_segments(monkeypatch, log)
    rig.store.truncate(log, kept)
    with pytest.raises(MemoryExhausted):  # not an OSError, which would end a backup's connection
        put(log, [b"not yet"])
    monkeypatch.undo()
    await rig.crash()
    (again,) = rig.open({"segment.bytes": "4096"})
    assert (again.storage_id, again.log_end) == (storage, kept)
    assert again.segments[-1].is_hot, "taken from memory"
    await rig.crash()
    rig.close()


async def test_a_cut_in_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    (log,) = rig.open(lead=False)
    take(log, 1, 10)
    log.roll()
    take(log, 1, 10)
    await rig.store.write_behind.durable()
    log.evict(log.segments[0])
    path, away = log.segments[0].path, tmp_path / "away"
    path.rename(away)
    before = (log.log_end, len(log.segments), rig.store.pool.use)
    with pytest.raises(FileNotFoundError):
        rig.store.truncate(log, 5)
    assert (log.log_end, len(log.segments), rig.store.pool.use) == before
    away.rename(path)
    rig.store.truncate(log, 5)
    log.commit(5)
    assert len(everything(log)) == 5
    await rig.store.stop()
    rig.close()


async def test_a_cut_with_producers_in_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    (log,) = rig.open(lead=False)
    log.replicated = True
    put(log, [b"a"], producer=(9, 0, 0))
    log.roll()
    put(log, [b"b"], producer=(9, 0, 1))
    put(log, [b"c"], producer=(9, 0, 2))
    await rig.store.write_behind.durable()
    log.evict(log.segments[0])
    log.segments[1].producers_path.unlink()  # else all that is needed would be there
    path, away = log.segments[0].path, tmp_path / "away"
    path.rename(away)
    before = (log.log_end, [segment.size for segment in log.segments], rig.store.pool.use)
    with pytest.raises(FileNotFoundError):
        rig.store.truncate(log, 2)
    assert (log.log_end, [segment.size for segment in log.segments], rig.store.pool.use) == before
    assert put(log, [b"c"], producer=(9, 0, 2)).duplicate is True
    with pytest.raises(FileNotFoundError):
        log.give_up_from(2)
    assert (log.log_end, [segment.size for segment in log.segments], rig.store.pool.use) == before
    away.rename(path)
    rig.store.truncate(log, 2)
    assert put(log, [b"b"], producer=(9, 0, 1)).duplicate is True
    assert put(log, [b"other"], producer=(9, 0, 2)).duplicate is False
    await rig.store.stop()
    rig.close()


async def test_what_is_left_of_a_cut_segment_can_be_evicted(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    (log,) = rig.open(lead=False)
    take(log, 1, 10)
    await rig.store.write_behind.durable()
    rig.store.truncate(log, 5)
    take(log, 2, 3)
    rig.store._wanted = rig.memory  # as much as there is
    rig.store._reclaim()
    assert [segment.is_hot for segment in log.segments] == [False, True]
    log.commit(8)
    assert len(everything(log)) == 8
    await rig.store.stop()
    rig.close()


async def test_what_was_cut_from_a_log_on_disk_is_gone_before_its_file_is_cut_r5(tmp_path: Path) -> None:
    """Found by the simulation: a backup copied what its leader, before it led, had been told to cut."""
    rig = LogRig(tmp_path)
    (log,) = rig.open(lead=False)
    log.replicated = True
    for sequence, value in enumerate([b"a", b"b", b"cut", b"cut too"]):
        put(log, [value], producer=(9, 0, sequence))
    await rig.store.stop()
    rig.lose_memory()
    (log,) = rig.open(lead=False)
    log.replicated = True
    disk_goes_on = threading.Event()

    def be_slow() -> None:
        disk_goes_on.wait()

    rig.store.write_behind.soon(be_slow)
    try:
        rig.store.truncate(log, 2)
        cut = log.segments[0]
        assert not cut.is_hot
        assert cut.path.stat().st_size > cut.size
        assert put(log, [b"c"], producer=(9, 0, 2)).duplicate is False, "its producer was taken back, too"
        put(log, [b"d"], producer=(9, 0, 3))
        log.commit(4)
        sent = cut.read_cold(0, 1 << 20, cut.size)
        assert [header.base_offset for _, header in batch.walk(sent, 0, len(sent))] == [0, 1]
        assert [record.value for record in everything(log)] == [b"a", b"b", b"c", b"d"]
        assert len(cut.read_file()) == cut.size
    finally:
        disk_goes_on.set()
    await rig.store.stop()
    rig.close()


async def test_a_crash_before_the_file_of_a_cut_log_is_cut_loses_nothing_r1(tmp_path: Path) -> None:
    """Found by the simulation: the log passed for another one, and nobody was left to lead."""
    rig = LogRig(tmp_path)
    (log,) = rig.open(lead=False)
    log.replicated = True
    for value in (b"a", b"b", b"cut", b"cut too"):
        put(log, [value])
    await rig.store.stop()
    rig.lose_memory()
    (log,) = rig.open(lead=False)
    log.replicated = True
    rig.store._cut_later = lambda segments: None  # type: ignore[method-assign]
    rig.store.truncate(log, 2)
    put(log, [b"c"])
    log.commit(3)
    storage = log.storage_id
    assert log.segments[0].path.stat().st_size > log.segments[0].size
    await rig.crash()
    (again,) = rig.open(lead=False)
    assert again.storage_id == storage
    assert [record.value for record in everything(again)] == [b"a", b"b", b"c"]
    assert again.segments[0].path.stat().st_size == again.segments[0].size
    await rig.crash()
    rig.close()


def test_the_watermark_stands_still_below_min_insync_replicas_r6(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        log = log_of(leader, world)
        assert await world.produce() is ErrorCode.none
        world.network.stalled |= {(1, 2), (2, 1)}
        waiting = asyncio.create_task(world.produce(log, timeout=20))
        await world.in_sync(1)
        assert await waiting is ErrorCode.not_enough_replicas_after_append
        watermark = log.high_watermark
        assert await world.produce(log) is ErrorCode.not_enough_replicas
        assert log.high_watermark == watermark
        world.network.stalled.clear()
        await world.in_sync(2)
        await world.until(lambda: log.high_watermark == log.log_end)
        assert await world.produce() is ErrorCode.none
        await asyncio.sleep(1)
        world.check()

    # Which of the two survives is chance; both obey.
    play(scenario, configs={"min.insync.replicas": "2"})


@interpreted
def test_a_backup_without_memory_holds_up_nobody_else_r10(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    append_run = PartitionLog.append_run

    async def scenario(world: World) -> None:
        leader = await world.leading()
        log = log_of(other(world, leader), world)
        refusing = True

        def full(self: PartitionLog, run: memoryview) -> bool:
            if self is log and refusing:
                raise MemoryExhausted(1, 1, 1)
            return append_run(self, run)

        monkeypatch.setattr(PartitionLog, "append_run", full)
        waiting = asyncio.create_task(world.produce(timeout=30))
        await asyncio.sleep(1)
        assert world.state is not None
        assert len(world.state.in_sync) == 2, "heartbeats go on while one partition waits for memory"
        await world.in_sync(1)  # it is dropped for standing still
        assert await waiting is ErrorCode.none
        refusing = False
        await world.in_sync(2)
        await asyncio.sleep(1)
        world.check()

    play(scenario)


@interpreted
def test_one_partition_that_stands_still_holds_up_no_other_on_its_connection_r10(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    append_run = PartitionLog.append_run
    monkeypatch.setattr(leadership, "WINDOW", 64 << 10)  # there is little memory here

    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        beside: PartitionKey = (bytes(16), 0)
        placed = [leader.number, backup.number]
        topic = {"id": str(uuid.UUID(bytes=beside[0])), "configs": {"segment.bytes": "16384"}}
        world.keys.put("/topics/u", topic | {"partitions": [[-1, -1, placed, []]]})
        log = await world.until(lambda: leader.led(beside))
        replicator = leader.replicator
        assert replicator is not None
        led = replicator.replicas[beside].leadership
        assert led is not None
        await world.until(lambda: len(led.known) == 2)
        full = log_of(backup, world)

        def append(self: PartitionLog, run: memoryview) -> bool:
            if self is full:
                raise MemoryExhausted(1, 1, 1)
            return append_run(self, run)

        monkeypatch.setattr(PartitionLog, "append_run", append)
        for _ in range(100):
            put(log_of(leader, world), [b"x" * 1000])
        await asyncio.sleep(0.2)
        put(log, [b"y"])
        await world.until(lambda: log.high_watermark == 1, 0.5)  # long before the other is dropped for it
        backups = replicator.links[backup.number].led[world.key].backups
        assert backups[backup.number].sent < 100, "more than a window is on its way"

    play(scenario)


def catch_up_stands_still(own_connection: bool) -> Scenario:
    """Nothing of a catch-up gets through for two seconds; heartbeats must."""

    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        backup.crash()
        await world.in_sync(1)
        for _ in range(40):  # more than goes with what is appended
            put(log_of(leader, world), [b"x" * 60_000])
        assert leader.replicator is not None
        link = leader.replicator.links[backup.number]
        if not own_connection:
            link._bulk = link._live
        await backup.start()
        await world.until(lambda: any(sent.shipments for sent in link._bulk.sent))
        live, bulk = link._live.channel, link._bulk.channel
        assert isinstance(bulk, SimEnd)
        bulk.held_up = True
        heard = link.heard_at
        await asyncio.sleep(2)
        assert link._live.channel is live, "the backup was taken for dead"
        assert link.heard_at > heard + 1.5, "heartbeats wait for the catch-up"
        assert log_of(backup, world).log_end < log_of(leader, world).log_end
        bulk.held_up = False
        await world.in_sync(2)
        world.check()

    return scenario


def test_a_catch_up_that_stands_still_holds_up_no_heartbeat_r10(play: Callable[..., None]) -> None:
    play(catch_up_stands_still(own_connection=True))


def flapping(hold_down: float) -> Scenario:
    """A backup's connection breaks and is back within milliseconds; its leader may have to stand again."""

    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        await world.produce()
        replicator = leader.replicator
        assert replicator is not None
        replicator._patience = replace(replicator._patience, hold_down=hold_down)
        replicator.links[backup.number].hang_up()
        await world.in_sync(1)
        dropped = asyncio.get_running_loop().time()
        await world.in_sync(2)
        away = asyncio.get_running_loop().time() - dropped
        assert away > 0.9, f"added again after {away:.2f} s"

    return scenario


def test_a_dropped_backup_is_not_added_again_at_once_r10(play: Callable[..., None]) -> None:
    play(flapping(Patience().hold_down))


def test_the_log_start_goes_to_every_replica_and_stays_r11(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        for _ in range(10):
            await world.produce()
        log = log_of(leader, world)
        log.advance_log_start(6)
        assert leader.replicator is not None
        await leader.replicator.told(log, log.term)
        backup = other(world, leader)
        assert log_of(backup, world).log_start == 6
        leader.crash()
        backup.crash()
        await backup.start()
        await leader.start()
        led = await world.until(world.leader)
        assert log_of(led, world).log_start == 6

    play(scenario)


async def delete_records(world: World, broker: SimBroker, offset: int) -> ErrorCode:
    """What a client of that broker is answered."""
    assert broker.replicator is not None
    catalog = Catalog()
    catalog.put(broker.directory.by_name["t"], [log_of(broker, world)])
    cluster = SimpleNamespace(replicator=broker.replicator)
    context: Any = SimpleNamespace(catalog=catalog, store=broker.store, cluster=cluster)
    keeper: Any = None
    wanted = SimpleNamespace(partition_index=0, offset=offset)
    request = SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[wanted])])
    answer: Any = await AdminHandlers(context, keeper, {}).delete_records(request, 2)
    code: ErrorCode = answer["topics"][0]["partitions"][0]["error_code"]
    return code


@pytest.mark.parametrize("fault", ["cut off", "deposed meanwhile", "refused"])
def test_records_count_as_deleted_only_when_every_replica_knows_r11(
    play: Callable[..., None], fault: str
) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        for _ in range(10):
            await world.produce()
        assert await delete_records(world, leader, 4) is ErrorCode.none
        assert log_of(backup, world).log_start == 4
        leader.metadata.away = True
        if fault == "refused":
            assert log_of(backup, world).promise(1000)  # it stands for election, its connection lives
        else:
            world.network.stalled |= {(1, 2), (2, 1)}
        answer = asyncio.create_task(delete_records(world, leader, 6))
        if fault == "deposed meanwhile":
            await world.until(lambda: backup.led(world.key))
            world.network.stalled.clear()
        assert await answer is (
            ErrorCode.not_leader_or_follower if fault == "deposed meanwhile" else ErrorCode.request_timed_out
        )
        assert log_of(backup, world).log_start == 4

    play(scenario)


def test_the_log_start_counts_as_taken_only_where_the_watermark_has_reached_it_r11(
    play: Callable[..., None],
) -> None:
    """With three replicas the watermark may lie within a run of batches that a backup got at once."""

    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        assert leader.replicator is not None
        assert backup.replicator is not None
        ours, its = log_of(leader, world), log_of(backup, world)
        led = leader.replicator.replicas[world.key].leadership
        attachment = backup.replicator.replicas[world.key].attachment
        assert led is not None
        assert attachment is not None
        inbound, link = attachment.inbound, leader.replicator.links[backup.number]
        await asyncio.sleep(0.1)
        world.network.stalled |= {(leader.number, backup.number), (backup.number, leader.number)}
        base, position = ours.log_end, ours.segments[-1].size
        waiting = [asyncio.create_task(world.produce(ours)) for _ in range(2)]
        await asyncio.sleep(0)
        run = ours.segments[-1].bytes_between(position, ours.segments[-1].size)
        assert ours.log_end == base + 2
        said: list[tuple[int, bytes]] = []

        class Keeps:
            is_stuck = is_closed = False

            def send(self, buffers: Sequence[Buffer]) -> None:
                content = b"".join(bytes(buffer) for buffer in buffers)
                said.append((content[4], content[5:]))

            def close(self) -> None: ...

        channel, inbound.channel = inbound.channel, Keeps()

        def send(number: int, base: int, watermark: int, records: memoryview | None) -> None:
            said.clear()
            draft = Draft()
            draft.add(world.key, attachment.epoch, base, watermark, 1, records)
            body = b"".join(bytes(b) for b in draft.finish(number))
            inbound.frame(frames.DATA, memoryview(body)[frames.HEAD.size :])

        send(1000, base, base, run)
        answers = [frames.read_acks(memoryview(body)) for kind, body in said if kind == frames.ACK]
        assert its.log_start < 1, "records that it may not show are all that it has deleted"
        assert answers == [(1000, []), (0, [(world.key, attachment.epoch, base + 2)])], "it vouched for it"
        send(1001, base + 2, base + 1, None)
        assert (its.high_watermark, its.log_start) == (1, 1), "it may never be told of more"
        assert [kind for kind, _ in said] == [frames.TAKEN]
        inbound.channel = channel
        link.hang_up()
        world.network.stalled.clear()
        await asyncio.gather(*waiting)

    play(scenario)


def test_a_member_that_only_a_deposed_leader_talks_to_stands(play: Callable[..., None]) -> None:
    """Its successor died before it had attached anybody, and the old leader keeps its connections."""

    async def scenario(world: World) -> None:
        first, second, third = world.brokers.values()
        await world.until(lambda: first.led(world.key))
        await world.produce(log_of(first, world))
        await world.until(lambda: world.state is not None and len(world.state.in_sync) == 3)
        assert world.state is not None
        members = tuple(member for member in world.state.in_sync if member.broker != first.number)
        second.crash()
        world.keys.put(f"/brokers/{second.number}", None)
        await world.until(lambda: world.state is not None and len(world.state.in_sync) == 2)
        deposed = replace(
            world.state, leader=second.number, epoch=world.state.epoch + 1, in_sync=members, reason="test"
        )
        world.keys.put(partitions.path_of(world.key), partitions.encode(deposed))
        led = await world.until(lambda: third.led(world.key))
        assert await world.produce(led) is ErrorCode.none
        await second.start()
        await asyncio.sleep(1.0)
        world.check()

    play(scenario, brokers=3)


def test_a_hand_over_that_etcd_held_up_leaves_a_later_leadership_alone(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        await world.produce()
        assert leader.replicator is not None
        replica = leader.replicator.replicas[world.key]
        led = replica.leadership
        assert led is not None
        real = leader.metadata.get

        async def get(key: str) -> Versioned | None:
            leader.metadata.get = real  # type: ignore[method-assign]
            assert leader.replicator is not None
            leader.replicator.fenced(world.key, led, led.epoch + 5)  # so it stands again, above that
            await world.until(lambda: replica.leadership not in (None, led))
            return await real(key)

        leader.metadata.get = get  # type: ignore[method-assign]
        assert not await leader.replicator.hand_over(replica, None, "test")
        assert replica.log.leading
        assert await world.produce(replica.log) is ErrorCode.none

    play(scenario)


async def test_a_backup_is_listed_only_when_it_knows_what_was_deleted_r11(tmp_path: Path) -> None:
    me, it = Member(1, 11), Member(2, 22)
    rig = LogRig(tmp_path)
    (log,) = rig.open()
    try:
        for _ in range(4):
            put(log, [b"x"])
        led = Leadership(log, PartitionState(1, 5, (1, 2), (me,)), me, 0.0)
        log.advance_log_start(2)
        backup = led.backups[2]
        backup.attach(22, 4, 4, 0.0)
        assert not led.complete(frozenset({me, it}))
        backup.start_acked = 2
        assert led.complete(frozenset({me, it}))
    finally:
        await rig.crash()
        rig.close()


def test_a_deposed_leader_can_commit_nothing_and_is_cut_to_the_common_prefix_r12(
    play: Callable[..., None],
) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        await world.produce()
        old = log_of(leader, world)
        assert shown(leader, world) is ControlState.LIVE
        # It hears nobody, etcd neither, but a client still does.
        leader.metadata.away = True
        world.network.stalled |= {(1, 2), (2, 1)}
        tail = [asyncio.create_task(world.produce(old, timeout=5)) for _ in range(3)]
        led = await world.until(lambda: other(world, leader).led(world.key))
        assert await world.produce(led) is ErrorCode.none
        for each in tail:
            assert await each is not ErrorCode.none
        assert old.high_watermark == 1
        assert shown(leader, world) is ControlState.SUSPECT, "readers here would trust it"
        leader.metadata.away = False
        world.network.stalled.clear()
        await world.until(lambda: shown(leader, world) is ControlState.FENCED)
        assert shown(other(world, leader), world) is ControlState.LIVE
        await world.in_sync(2)
        await asyncio.sleep(1)
        world.check()

    play(scenario)


def test_a_leader_that_does_not_hear_its_backup_is_suspect_until_it_has_dropped_it(
    play: Callable[..., None],
) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        assert (shown(leader, world), shown(backup, world)) == (ControlState.LIVE, ControlState.FENCED)
        leader.metadata.away = backup.metadata.away = True
        world.network.stalled |= {(1, 2), (2, 1)}
        await world.until(lambda: shown(leader, world) is ControlState.SUSPECT, 1)
        await asyncio.sleep(5)
        assert shown(leader, world) is ControlState.SUSPECT, "it can't know that nobody else leads"
        leader.metadata.away = False
        await world.in_sync(1)
        await world.until(lambda: shown(leader, world) is ControlState.LIVE, 1)

    play(scenario)


def test_a_hand_over_loses_nothing_and_fails_nobody(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        assert leader.replicator is not None
        replica = leader.replicator.replicas[world.key]
        await asyncio.sleep(0.1)  # its last change of the set is settled
        waiting = [asyncio.create_task(world.produce(replica.log)) for _ in range(20)]
        await asyncio.sleep(0)
        assert await leader.replicator.hand_over(replica, None, "test")
        assert {await each for each in waiting} == {ErrorCode.none}
        led = await world.until(lambda: other(world, leader).led(world.key))
        assert await world.produce(led) is ErrorCode.none
        # The preferred leader is in sync, so leadership goes home after a while.
        await world.until(lambda: leader.led(world.key))
        world.check()

    play(scenario)


@pytest.mark.parametrize("was_done", [False, True])
def test_a_hand_over_without_an_answer_stops_nobody_and_commits_nothing_twice_r2(
    play: Callable[..., None], was_done: bool
) -> None:
    """The old leader serves on, without knowing whether it still leads; if it doesn't, it can't commit."""

    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        old = log_of(leader, world)
        assert await world.produce(old) is ErrorCode.none
        await asyncio.sleep(0.1)
        assert leader.replicator is not None
        replica = leader.replicator.replicas[world.key]

        async def swap(changes: Sequence[Change]) -> bool:
            if was_done:
                world.keys.swap(changes)
                world.network.stalled |= {(1, 2), (2, 1)}
            else:
                backup.metadata.away = True
            leader.metadata.away = True
            raise Unavailable("no answer")

        leader.metadata.swap, real = swap, leader.metadata.swap  # type: ignore[method-assign]
        handing = asyncio.create_task(leader.replicator.hand_over(replica, None, "test"))
        await world.until(lambda: leader.metadata.away)
        leader.metadata.swap = real  # type: ignore[method-assign]
        assert not old.leading, "no append is left half-way by a hand-over that goes well"
        await asyncio.sleep(1.5)
        assert old.leading, "it stopped serving for as long as etcd is away"
        code = await world.produce(old)
        if was_done:
            assert code is not ErrorCode.none, "a deposed leader committed"
            assert await world.produce(log_of(backup, world)) is ErrorCode.none
        else:
            assert code is ErrorCode.none
            await asyncio.sleep(20)
            assert await world.produce(old) is ErrorCode.none
        for each in world.brokers.values():
            each.metadata.away = False
        world.network.stalled.clear()
        assert await handing is was_done, "after a while it is not wanted any more: the target may be gone"
        await world.in_sync(2)
        assert await world.produce(log_of(await world.leading(), world)) is ErrorCode.none
        await asyncio.sleep(1)
        world.check()

    play(scenario)


# What an event has told already is not left to the patrol


def without_patrol(world: World) -> None:
    for broker in world.brokers.values():
        if broker.replicator is not None:
            broker.replicator._look_after = lambda *_: None  # type: ignore[method-assign]


def during_swap(broker: SimBroker, do: Callable[[], None]) -> None:
    """While the broker's next change of a key is on its way, something happens that all others notice."""
    real = broker.metadata.swap

    async def swap(changes: Sequence[Change]) -> bool:
        broker.metadata.swap = real  # type: ignore[method-assign]
        do()
        await asyncio.sleep(0.02)
        return await real(changes)

    broker.metadata.swap = swap  # type: ignore[method-assign]


async def takes(work: Awaitable[object]) -> float:
    started = asyncio.get_running_loop().time()
    await work
    return asyncio.get_running_loop().time() - started


@pytest.mark.parametrize("knew_it", [True, False])
def test_a_new_leader_drops_at_once_whom_it_lost_before_it_led(
    play: Callable[..., None], knew_it: bool
) -> None:
    async def scenario(world: World) -> None:
        first, second, third = world.brokers.values()
        assert first.replicator is not None
        assert second.replicator is not None
        replica = first.replicator.replicas[world.key]
        await world.until(lambda: first.led(world.key))
        await asyncio.sleep(0.1)
        if knew_it:  # by a link from the time when it led before
            assert await first.replicator.hand_over(replica, second.number, "test")
            await world.until(lambda: second.led(world.key))
            await world.until(lambda: first.led(world.key))
            await asyncio.sleep(0.1)
            assert second.replicator.links[third.number].is_up
        else:
            assert third.number not in second.replicator.links
        without_patrol(world)

        def stop_third() -> None:
            third.crash()
            world.keys.put(f"/brokers/{third.number}", None)

        during_swap(first, stop_third)
        assert await first.replicator.hand_over(replica, second.number, "test")
        led = await world.until(lambda: second.led(world.key))
        assert await takes(world.produce(led)) < 0.2
        assert world.state is not None
        assert {member.broker for member in world.state.in_sync} == {first.number, second.number}
        await asyncio.sleep(0.1)
        world.check()

    play(scenario, brokers=3)


def test_a_new_leader_waits_for_one_that_it_has_not_seen_yet(play: Callable[..., None]) -> None:
    """After a start of the whole cluster the others are about to come: they are not lost."""

    async def scenario(world: World) -> None:
        leader = await world.leading()
        await world.produce()
        backup = other(world, leader)
        for broker in (leader, backup):
            world.keys.put(f"/brokers/{broker.number}", None)
            broker.crash()
        await leader.start()
        await world.until(lambda: leader.led(world.key))
        await asyncio.sleep(0.1)
        await backup.start()
        assert await world.produce(log_of(leader, world)) is ErrorCode.none
        assert leader.replicator is not None
        assert leader.replicator.shrinks == 0

    play(scenario)


def test_a_hand_over_to_a_broker_that_is_lost_meanwhile_holds_up_nobody(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        assert leader.replicator is not None
        await asyncio.sleep(0.1)
        without_patrol(world)
        handing = asyncio.create_task(
            leader.replicator.hand_over(leader.replicator.replicas[world.key], None, "test")
        )
        await asyncio.sleep(0)
        backup.crash()
        assert await handing is False, "a broker that is gone was made leader"
        assert await takes(world.produce(log_of(leader, world))) < 0.1
        assert await world.produce(log_of(leader, world)) is ErrorCode.none

    play(scenario)


def test_a_backup_that_is_lost_while_another_is_dropped_is_dropped_next(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        one, two = (broker for broker in world.brokers.values() if broker is not leader)
        await asyncio.sleep(0.1)
        without_patrol(world)
        during_swap(leader, two.crash)
        one.crash()
        await world.until(lambda: not two.alive)
        assert await takes(world.produce()) < 0.2
        assert len(world.acknowledged) == 1

    play(scenario, brokers=3)


def test_a_backup_that_is_lost_while_it_joins_holds_up_nobody(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        backup.crash()
        await world.in_sync(1)
        await backup.start()
        assert leader.replicator is not None
        replica = leader.replicator.replicas[world.key]
        led = replica.leadership
        assert led is not None
        await world.until(lambda: led.backups[backup.number].streaming)
        await asyncio.sleep(0.1)
        without_patrol(world)
        world.network.stalled.add((backup.number, leader.number))
        assert await world.produce() is ErrorCode.none
        replica.shrunk_at = -1e9
        leader.replicator._review(replica, led, leader.replicator.now(), frozenset())
        await asyncio.sleep(0.01)
        assert led.proposed is not None
        backup.crash()
        world.network.stalled.clear()
        assert await takes(world.produce()) < 0.1
        assert len(world.acknowledged) == 2

    play(scenario)


def test_a_replica_that_finds_itself_appointed_when_it_would_stand_leads_at_once(
    play: Callable[..., None],
) -> None:
    """It lost its leader, which had handed over to it, before it heard of that."""

    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        assert leader.replicator is not None
        await asyncio.sleep(0.1)
        without_patrol(world)
        backup.metadata.late = 10
        assert await leader.replicator.hand_over(leader.replicator.replicas[world.key], None, "test")
        leader.crash()
        assert await takes(world.until(lambda: backup.led(world.key), 5)) < 0.1


def test_what_a_hand_over_that_failed_has_refused_leaves_no_gap(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        assert leader.replicator is not None
        log = log_of(leader, world)
        await asyncio.sleep(0.1)
        log.gaps_excused_until = 0
        real = leader.metadata.swap

        async def swap(changes: Sequence[Change]) -> bool:
            assert not log.leading, "requests are refused"
            assert world.state is not None
            world.move(*world.state.replicas)  # the key has changed
            return await real(changes)

        leader.metadata.swap = swap  # type: ignore[method-assign]
        replica = leader.replicator.replicas[world.key]
        assert not await leader.replicator.hand_over(replica, None, "test")
        assert log.leading
        assert log.gaps_excused_until > 0, "the next request would be out of order"

    play(scenario)


def test_a_backup_that_promised_to_nobody_is_attached_again_whatever_was_going_on(
    play: Callable[..., None],
) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        assert leader.replicator is not None
        replica = leader.replicator.replicas[world.key]
        backup = other(world, leader)
        log_of(backup, world).promise(50)
        replica.swapping = True  # the refusal comes while a change of the set is on its way
        leader.replicator.links[backup.number].hang_up()
        await asyncio.sleep(1)
        replica.swapping = False
        await world.until(lambda: world.state is not None and world.state.epoch > 50)
        await world.in_sync(2)

    play(scenario)


def test_a_backup_joins_under_load_that_never_pauses(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        backup.crash()
        await world.in_sync(1)
        stop = False

        async def load() -> None:
            while not stop:
                led = leader.led(world.key)
                if led is not None:
                    await world.produce(led)
                await asyncio.sleep(0.0005)

        clients = [asyncio.create_task(load()) for _ in range(4)]
        await backup.start()
        await world.in_sync(2)
        stop = True
        await asyncio.gather(*clients)
        await asyncio.sleep(1)
        world.check()

    play(scenario)


def test_a_replica_moves_to_another_broker_while_running(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        for _ in range(30):
            await world.produce()
        state = world.state
        assert state is not None
        moved = partitions.encode(state) | {"replicas": [2, 3]}
        world.keys.put(partitions.path_of(world.key), moved)
        await world.until(lambda: {m.broker for m in world.state.in_sync} == {2, 3} if world.state else False)
        assert await world.until(lambda: world.brokers[2].led(world.key))
        assert await world.produce() is ErrorCode.none
        await asyncio.sleep(1)
        world.check()
        assert world.brokers[1].log(world.key) is None

    world = World(7, 3, None, replicas=2)

    async def whole() -> None:
        await world.start()
        await world.in_sync(2)
        await scenario(world)

    try:
        simulate(whole())
    finally:
        world.close()


def moving(scenario: Scenario, brokers: int, replicas: int, configs: dict[str, str] | None = None) -> None:
    """On the first of some brokers there is a partition, with records; the others have nothing yet."""
    world = World(7, brokers, configs, replicas=replicas)

    async def whole() -> None:
        await world.start()
        await world.in_sync(replicas)
        await world.until(lambda: world.brokers[1].led(world.key))
        for _ in range(50):
            assert await world.produce() is ErrorCode.none
        await scenario(world)

    try:
        simulate(whole())
    finally:
        world.close()


def in_sync(world: World) -> set[int]:
    assert world.state is not None
    return {member.broker for member in world.state.in_sync}


def hold_back(world: World, broker: int) -> None:
    """It gets nothing from anybody."""
    world.network.stalled |= {(other, broker) for other in world.brokers if other != broker}


async def moved(world: World, *replicas: int) -> None:
    await world.until(lambda: in_sync(world) == set(replicas) and world.settled())
    assert await world.produce() is ErrorCode.none
    await world.until(world.settled)
    world.check()


@pytest.mark.parametrize("kill", [True, False])
def test_a_half_copied_replica_does_not_lead_though_no_other_is_wanted(kill: bool) -> None:
    async def scenario(world: World) -> None:
        old, new = world.brokers.values()
        world.move(new.number)
        await world.until(
            lambda: new.replicator and (r := new.replicator.replicas.get(world.key)) and r.attachment
        )
        if kill:
            old.crash()
            await asyncio.sleep(5)
            assert new.led(world.key) is None, "it has nothing"
            await old.start()
        else:
            for end in [end for end in world.network.ends if end.here == old.number]:
                end.close()
        await moved(world, new.number)
        assert len(records(log_of(new, world))) == 51

    moving(scenario, brokers=2, replicas=1)


def test_a_leader_that_lost_its_log_leaves_it_to_those_it_is_moved_away_from() -> None:
    async def scenario(world: World) -> None:
        leader, backup = world.brokers.values()
        leader.metadata.away = True
        world.move(leader.number)
        backup.crash()
        leader.crash()
        leader.lose_storage()
        leader.metadata.away = False
        await leader.start()
        await asyncio.sleep(1)
        assert leader.led(world.key) is None, "elected with an empty log"
        await backup.start()
        await moved(world, leader.number)
        assert len(records(log_of(leader, world))) == 51

    moving(scenario, brokers=2, replicas=2)


@pytest.mark.parametrize("wanted", [(1, 3), (2, 3), (3, 1)])
def test_a_replica_is_moved_away_only_when_the_new_one_has_all(wanted: tuple[int, ...]) -> None:
    async def scenario(world: World) -> None:
        hold_back(world, 3)
        world.move(*wanted)
        for _ in range(100):
            assert await world.produce() is not ErrorCode.not_enough_replicas
            await asyncio.sleep(0.05)
        assert in_sync(world) == {1, 2}, "the only copies that there are"
        assert log_of(world.brokers[2], world).log_end == log_of(world.brokers[1], world).log_end
        assert len(world.acknowledged) > 140
        world.network.stalled.clear()
        await moved(world, *wanted)

    moving(scenario, brokers=3, replicas=2, configs={"min.insync.replicas": "2"})


def test_a_replica_that_was_moved_away_did_not_fall_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        first = world.brokers[1]
        assert first.replicator is not None
        replica = first.replicator.replicas[world.key]
        before = replica.shrunk_at
        world.move(1, 3)
        await moved(world, 1, 3)
        assert world.state is not None
        assert world.state.reason == "moved away from broker 2"
        assert "dropping" not in caplog.text
        assert replica.shrunk_at == before, "the next one that joins would have to wait"

    moving(scenario, brokers=3, replicas=2)


def test_a_replica_stays_when_the_new_one_is_listed_and_not_seen_by_the_leader() -> None:
    """The new one died, and its leader, too, before that was noticed."""

    async def scenario(world: World) -> None:
        first, second, third = world.brokers.values()
        world.move(1, 3)
        await world.until(lambda: in_sync(world) == {1, 2, 3})
        second.metadata.away = True  # it doesn't stand
        third.crash()
        first.crash()
        await first.start()
        await world.until(lambda: first.led(world.key))
        assert first.replicator is not None
        led = first.replicator.replicas[world.key].leadership
        assert led is not None
        assert {member.broker for member in led.known} == {1, 2, 3}
        assert not led.missing(first.replicator.now(), frozenset(), 2.0)
        assert not led.moved_away(), "dropped for one that is dead"
        await world.until(lambda: in_sync(world) == {1, 2})
        second.metadata.away = False
        await third.start()
        await moved(world, 1, 3)

    moving(scenario, brokers=3, replicas=2)


def test_a_member_that_it_is_moved_away_from_leads_when_nobody_else_can() -> None:
    async def scenario(world: World) -> None:
        first, second, _ = world.brokers.values()
        hold_back(world, 3)
        world.move(3)
        await asyncio.sleep(0.02)
        first.crash()
        await world.until(lambda: second.led(world.key), 2)
        assert await world.produce() is ErrorCode.none
        world.network.stalled.clear()
        await moved(world, 3)
        assert len(world.acknowledged) == 52

    moving(scenario, brokers=3, replicas=2)


def test_the_last_member_leads_again_after_a_restart_though_it_is_moved_away() -> None:
    async def scenario(world: World) -> None:
        first, second, _ = world.brokers.values()
        second.crash()
        await world.in_sync(1)
        assert await world.produce() is ErrorCode.none
        hold_back(world, 3)
        world.move(2, 3)
        await asyncio.sleep(0.02)
        first.crash()
        world.network.stalled.clear()
        await second.start()
        await asyncio.sleep(3)
        assert second.led(world.key) is None, "it doesn't have the last record"
        await first.start()
        await moved(world, 2, 3)
        assert len(world.acknowledged) == 52

    moving(scenario, brokers=3, replicas=2)


def test_a_leader_that_it_is_moved_away_from_gives_way_though_the_first_of_the_list_is_dead() -> None:
    async def scenario(world: World) -> None:
        _, second, third = world.brokers.values()
        second.crash()
        world.keys.put("/brokers/2", None)
        world.move(2, 3)
        await world.until(lambda: third.led(world.key), 10)
        assert world.state is not None
        assert world.state.reason == "broker 3 stands in for its preferred leader"
        assert in_sync(world) == {1, 3}, "not moved yet: it would have one copy less"
        await asyncio.sleep(5)
        assert third.led(world.key), "nor does it go back"
        await second.start()
        await moved(world, 2, 3)
        await world.until(lambda: second.led(world.key))

    moving(scenario, brokers=3, replicas=1)


def test_a_replica_that_lost_its_memory_and_was_copied_since_leaves_no_offset_out() -> None:
    """It leads alone later: not what is left of a log, but all of it."""

    async def scenario(world: World) -> None:
        first, second = world.brokers.values()
        first.crash()
        first.lose_memory()
        await world.until(lambda: second.led(world.key))
        await first.start()
        await world.in_sync(2)
        assert await world.produce() is ErrorCode.none
        assert second.led(world.key)
        end = log_of(second, world).log_end
        world.move(1)
        await asyncio.sleep(0.01)
        second.crash()
        await world.until(lambda: first.led(world.key))
        assert world.state is not None
        assert world.state.is_only_on(1)
        assert await world.produce() is ErrorCode.none
        assert log_of(first, world).log_end == end + 1

    moving(scenario, brokers=2, replicas=2)


def test_a_leader_that_stops_hands_over_to_a_member_that_it_is_moved_away_from() -> None:
    async def scenario(world: World) -> None:
        first, second, _ = world.brokers.values()
        assert first.replicator is not None
        hold_back(world, 3)
        world.move(3)
        await asyncio.sleep(0.5)
        await first.replicator.leave()
        assert second.led(world.key) or await world.until(lambda: second.led(world.key), 1)
        assert world.state is not None
        assert world.state.reason == "broker 1 stops"

    moving(scenario, brokers=3, replicas=2)


def test_old_news_of_a_move_deletes_no_log_that_is_in_sync_again() -> None:
    async def scenario(world: World) -> None:
        second = world.brokers[2]
        storage = log_of(second, world).storage_id
        second.metadata.late = 20
        world.move(1, 3)
        await world.until(lambda: in_sync(world) == {1, 3})
        world.move(1, 2)
        await world.until(lambda: in_sync(world) == {1, 2})
        for _ in range(500):  # it hears of all that now
            await asyncio.sleep(0.05)
            assert world.state is not None
            assert world.state.has(2, storage)
            found = second.log(world.key)
            assert found is None or found.storage_id == storage, "it had deleted its log"
        assert log_of(second, world).storage_id == storage
        second.metadata.late = 0
        await moved(world, 1, 2)

    moving(scenario, brokers=3, replicas=2)


def test_a_log_that_was_moved_away_stays_while_etcd_cannot_be_asked() -> None:
    async def scenario(world: World) -> None:
        second = world.brokers[2]
        log = log_of(second, world)
        real = second.metadata.get

        async def get(key: str) -> Any:
            raise Unavailable("away")

        second.metadata.get = get  # type: ignore[method-assign]
        world.move(1)
        await world.until(lambda: second.log(world.key) is None)
        await asyncio.sleep(3)
        assert log.disk_directory.exists()
        assert log.memory_directory.exists()
        second.metadata.get = real  # type: ignore[method-assign]
        await world.until(lambda: not log.disk_directory.exists() and not log.memory_directory.exists())
        world.move(1, 2)
        await moved(world, 1, 2)

    moving(scenario, brokers=2, replicas=2)


def test_what_a_replica_had_that_was_moved_away_counts_only_after_another_handshake() -> None:
    """It is placed there again in the moment it was dropped: perhaps it has deleted its log."""

    async def scenario(world: World) -> None:
        first = world.brokers[1]
        assert first.replicator is not None
        led = first.replicator.replicas[world.key].leadership
        assert led is not None
        backup = led.backups[2]
        real, handshakes = first.metadata.swap, backup.handshake
        first.metadata.late = 5

        async def swap(changes: Sequence[Change]) -> bool:
            done = await real(changes)
            if in_sync(world) == {1}:
                world.move(1, 2)
            return done

        first.metadata.swap = swap  # type: ignore[method-assign]
        world.move(1)
        await world.until(lambda: backup.handshake > handshakes or led.backups.get(2) is not backup, 7)
        assert led.backups.get(2) is backup
        await moved(world, 1, 2)

    moving(scenario, brokers=2, replicas=2)


def test_a_broker_that_left_and_has_nothing_of_ours_is_not_dialled_until_it_is_back() -> None:
    async def scenario(world: World) -> None:
        first, second, _ = world.brokers.values()
        assert first.replicator is not None
        real, dialled = first.replicator.network.dial, list[int]()

        async def dial(address: tuple[str, int], handler: Any) -> Any:
            dialled.append(address[1])
            return await real(address, handler)

        first.replicator.network.dial = dial  # type: ignore[method-assign]
        second.crash()
        world.keys.put("/brokers/2", None)
        await asyncio.sleep(2)
        assert 2 in dialled, "it has a replica of what we lead"
        world.move(1, 3)
        await world.until(lambda: in_sync(world) == {1, 3} and 2 in first.directory.left)
        await asyncio.sleep(1)
        dialled.clear()
        await asyncio.sleep(5)
        assert 2 not in dialled, "decommissioned"
        await second.start()
        await world.until(lambda: first.replicator and first.replicator.links[2].is_up, 1)
        world.move(1, 2)
        await moved(world, 1, 2)

    moving(scenario, brokers=3, replicas=2)


def test_a_partition_on_fewer_brokers_than_its_topic_wants_counts_as_under_replicated() -> None:
    async def scenario(world: World) -> None:
        first = world.brokers[1]
        node: Any = SimpleNamespace(
            replicator=first.replicator, directory=first.directory, metadata=SimpleNamespace(reachable=True)
        )

        def lacking() -> float:
            families = {
                each.name: each for each in replication(cast("Broker", SimpleNamespace(cluster=node)))
            }
            return families["penstock_under_replicated_partitions"].samples[0].value

        assert lacking() == 0
        world.keys.put("/topics/t", world.keys.values["/topics/t"].value | {"replication": 3})
        await world.until(lambda: first.directory.by_name["t"].replication == 3)
        assert lacking() == 1, "a drain left it on two: all of them are in sync"
        world.move(1, 2, 3)
        await moved(world, 1, 2, 3)
        await world.until(lambda: lacking() == 0)

    moving(scenario, brokers=3, replicas=2)


# A broker's own troubles


@pytest.mark.parametrize("trouble", ["full", "damaged"])
def test_a_leader_that_cannot_open_its_log_leaves_it_to_another(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """It is registered, but attaches nobody; and nobody lost it, since all were restarted."""
    opened, troubled = LogStore.open, set[int]()

    def open_with_trouble(self: LogStore, places: Iterable[PartitionPlace], *, new: bool = False) -> Any:
        if self.broker_id in troubled and trouble == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        logs = opened(self, places, new=new)
        for log in logs:
            log.damage = "damaged" if self.broker_id in troubled else None
        return logs

    monkeypatch.setattr(LogStore, "open", open_with_trouble)

    async def scenario(world: World) -> None:
        leader = await world.leading()
        for _ in range(20):
            assert await world.produce() is ErrorCode.none
        backup = other(world, leader)
        for broker in (leader, backup):
            broker.crash()
        troubled.add(leader.number)
        for broker in (leader, backup):
            await broker.start()
        led = await world.until(lambda: backup.led(world.key), 10)
        assert await world.produce(led) is ErrorCode.none
        assert in_sync(world) == {backup.number}
        assert len(records(led)) == 21

    play(scenario)


def test_a_broker_that_has_stopped_takes_nothing_more_from_a_leader(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        log, replicator = log_of(backup, world), backup.replicator
        assert replicator is not None
        for end in world.network.ends:
            end.close = lambda: None  # type: ignore[method-assign]  # as the second connection stays open
        await replicator.stop()
        end_then = log.log_end
        await world.produce()
        assert log.log_end == end_then, "after its end was saved"

    play(scenario)


def test_a_broker_that_has_stopped_deletes_nothing_that_is_moved_away() -> None:
    """Its watch still runs, and its logs are being closed."""

    async def scenario(world: World) -> None:
        second = world.brokers[2]
        log, replicator = log_of(second, world), second.replicator
        assert replicator is not None
        await replicator.stop()
        world.move(1)
        await world.until(lambda: second.directory.states[world.key].brokers == (1,))
        await asyncio.sleep(1)
        assert log.disk_directory.exists()
        assert second.log(world.key) is log

    moving(scenario, brokers=2, replicas=2)


def test_a_hand_over_that_etcd_holds_up_for_too_long_ends_when_the_broker_stops() -> None:
    async def scenario(world: World) -> None:
        first = world.brokers[1]
        replicator, real = first.replicator, first.metadata.swap
        assert replicator is not None
        log, asked = log_of(first, world), 0

        async def swap(changes: Sequence[Change]) -> bool:
            nonlocal asked
            asked += 1
            raise Unavailable("away")

        first.metadata.swap = swap  # type: ignore[method-assign]
        await replicator.leave(0.5)
        await replicator.stop()
        assert asked
        first.metadata.swap = real  # type: ignore[method-assign]
        swaps, term = first.metadata.swaps, log.term
        await asyncio.sleep(3)
        assert (first.metadata.swaps, log.term) == (swaps, term), "its log may be closed by now"

    moving(scenario, brokers=2, replicas=2)


@interpreted
def test_a_leader_without_memory_for_the_offsets_it_leaves_out_serves_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skip_to, failures = PartitionLog.skip_to, [MemoryExhausted(1, 1, 1), MemoryExhausted(1, 1, 1)]

    def failing(self: PartitionLog, offset: int) -> None:
        if failures:
            raise failures.pop()
        skip_to(self, offset)

    async def scenario(world: World) -> None:
        broker = world.brokers[1]
        broker.crash()
        broker.lose_memory()
        monkeypatch.setattr(PartitionLog, "skip_to", failing)
        await broker.start()
        led = await world.until(lambda: broker.led(world.key), 5)
        assert not failures
        assert await world.produce(led) is ErrorCode.none

    moving(scenario, brokers=1, replicas=1)


def test_a_member_does_not_stand_against_a_leader_it_has_just_heard_of(play: Callable[..., None]) -> None:
    """It had none for long: the new one is about to attach it."""

    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        assert backup.replicator is not None
        replica = backup.replicator.replicas[world.key]
        replica.attachment, replica.idle_since = None, -100.0
        replica.knows_epoch = -1
        backup.replicator._react(replica)
        await asyncio.sleep(0.2)
        assert leader.led(world.key)
        assert backup.led(world.key) is None

    play(scenario)


def test_a_replica_that_could_not_be_opened_is_tried_again_and_holds_up_no_other(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    full: set[str] = set()
    half_way: list[PartitionLog] = []
    opened = LogStore.open

    def open_if_there_is_room(
        self: LogStore, places: Iterable[PartitionPlace], *, new: bool = False
    ) -> list[PartitionLog]:
        places = list(places)
        wanted = {place.topic for place in places} if self.broker_id == 1 else set()
        if full & wanted == {"new"}:
            raise OSError(errno.ENOSPC, "No space left on device")
        logs = opened(self, places, new=new)
        if full & wanted:
            half_way.extend(logs)
            raise OSError(errno.ENOSPC, "No space left on device")
        return logs

    monkeypatch.setattr(LogStore, "open", open_if_there_is_room)

    async def scenario(world: World) -> None:
        new_id = bytes(range(16, 32))
        new = {
            "id": str(uuid.UUID(bytes=new_id)),
            "configs": {},
            "partitions": [[-1, -1, [1, 2], []]],
        }

        def in_sync(key: PartitionKey) -> int:
            found = world.keys.values.get(partitions.path_of(key))
            return len(partitions.decode(found).in_sync) if found else 0

        full.add("new")
        world.keys.put("/topics/new", new)
        await asyncio.sleep(3)
        assert world.brokers[1].log((new_id, 0)) is None
        full.clear()
        await world.until(lambda: in_sync((new_id, 0)) == 2)

        # At its start: the first topic can't be opened, the one behind it can.
        world.brokers[1].crash()
        await world.until(lambda: in_sync(world.key) == in_sync((new_id, 0)) == 1)
        full.add("t")
        await world.brokers[1].start()
        assert world.brokers[1].log(world.key) is None
        full.clear()
        await world.until(lambda: in_sync((new_id, 0)) == in_sync(world.key) == 2)
        assert half_way == [log_of(world.brokers[1], world)], "its memory was taken twice"

    play(scenario)


def test_one_failure_does_not_stop_the_clock(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        await world.produce()
        assert leader.replicator is not None
        before = world.state

        def fails(*_of: object) -> None:
            raise ValueError("nobody thought of this")

        leader.replicator._watch_backup = fails  # type: ignore[method-assign]
        leader.replicator._take_home = fails  # type: ignore[method-assign]
        await asyncio.sleep(3)
        assert world.state == before, "its heartbeats stopped"
        assert "nobody thought of this" in caplog.text
        assert caplog.text.count("nobody thought of this") < 20, "it is told again and again"
        del leader.replicator._watch_backup, leader.replicator._take_home
        other(world, leader).crash()
        await world.in_sync(1)
        await other(world, leader).start()
        await world.in_sync(2)  # the patrol goes its rounds
        world.check()

    play(scenario)


def test_a_cut_that_the_disk_refuses_is_asked_for_again_on_the_same_connection(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        assert await world.produce() is ErrorCode.none
        # The leader's last record reaches nobody, the other one leads, and has it cut.
        leader.metadata.away = True
        world.network.stalled |= {(1, 2), (2, 1)}
        tail = asyncio.create_task(world.produce(log_of(leader, world), timeout=1))
        await world.until(lambda: backup.led(world.key))
        await tail
        refused = 0
        truncate = leader.store.truncate

        def refuse(partition: PartitionLog, offset: int) -> None:
            nonlocal refused
            refused += 1
            if refused <= 3:
                raise OSError(errno.EIO, "the disk is tired")
            truncate(partition, offset)

        leader.store.truncate = refuse  # type: ignore[method-assign]
        leader.metadata.away = False
        world.network.stalled.clear()
        assert backup.replicator is not None
        await world.until(lambda: refused)
        lane = backup.replicator.links[leader.number]._live
        channel = lane.channel
        assert channel is not None
        await world.in_sync(2)
        assert refused == 4
        assert lane.channel is channel, "one partition's failure cut off all others"
        assert "the disk is tired" in caplog.text
        await asyncio.sleep(1)
        world.check()

    play(scenario)


def test_parked_records_that_do_not_fit_any_more_are_asked_for_again(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        await world.produce()
        await asyncio.sleep(0.1)
        first = log_of(leader, world).read(0, 1 << 20)
        assert first is not None
        assert first.view is not None
        assert backup.replicator is not None
        replica = backup.replicator.replicas[world.key]
        attachment = replica.attachment
        assert attachment is not None
        attachment.park(Section(world.key, attachment.epoch, 0, 1, 0, None), first.view)
        assert await world.produce() is ErrorCode.none
        assert not attachment.parked
        assert replica.attachment is not attachment
        # And it still notices that its leader is silent.
        leader.metadata.away = True
        world.network.stalled |= {(1, 2), (2, 1)}
        await world.until(lambda: backup.led(world.key))
        world.check()

    play(scenario)


def test_records_that_wait_for_memory_are_bounded_in_total_r10(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        assert backup.replicator is not None
        replica = backup.replicator.replicas[world.key]
        backup.replicator.parking = 20_000
        pool = backup.store.pool
        acquire = pool.acquire

        def none_left(_size: int) -> SegmentMemory:
            raise MemoryExhausted(1, 1, 1)

        pool.acquire = none_left  # type: ignore[method-assign]
        waiting, most = [], 0
        for _ in range(200):
            waiting += [asyncio.create_task(world.produce(timeout=30)) for _ in range(5)]
            await asyncio.sleep(0.01)
            if replica.attachment is not None:
                most = max(most, sum(len(each.records or b"") for each in replica.attachment.parked))
        assert 0 < most <= 20_000
        await world.in_sync(1)  # dropped for standing still, however often it was attached meanwhile
        assert {await each for each in waiting} == {ErrorCode.none}
        pool.acquire = acquire  # type: ignore[method-assign]
        await world.in_sync(2)
        await asyncio.sleep(1)
        world.check()

    play(scenario)


def test_a_backup_asks_for_nothing_while_much_waits_for_memory_r10(play: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        leader = await world.leading()
        backup = other(world, leader)
        assert leader.replicator is not None
        assert backup.replicator is not None
        room, backup.replicator.parking = backup.replicator.parking, -2
        leader.replicator.links[backup.number].hang_up()
        await world.in_sync(1)
        assert await world.produce() is ErrorCode.none
        await asyncio.sleep(3)
        assert log_of(backup, world).log_end == 0
        backup.replicator.parking = room
        await world.in_sync(2)
        await asyncio.sleep(1)
        world.check()

    play(scenario)


# Tests of the tests: without its rule, each schedule above does its harm and is noticed.


def test_without_storage_ids_an_empty_log_is_elected_r1(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def has(self: PartitionState, broker: int, storage: int) -> bool:
        return any(member.broker == broker for member in self.in_sync)

    monkeypatch.setattr(PartitionState, "has", has)
    with pytest.raises(AssertionError):
        test_a_replica_that_lost_its_storage_neither_stands_nor_counts_r1(play)


@interpreted
async def test_without_the_union_of_sets_a_member_lacks_what_is_committed_r2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Leadership, "propose", lambda self, members: self.advance())
    with pytest.raises(AssertionError, match="already list"):
        await test_a_swap_without_an_answer_keeps_both_sets_in_force_r2(tmp_path)


@interpreted
def test_without_promises_a_lower_epoch_is_followed_r3(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionLog, "promise", lambda self, epoch: True)
    with pytest.raises(AssertionError):
        test_a_promise_survives_the_process_and_a_restored_etcd_r3(play)


def test_without_an_election_at_every_start_a_leader_goes_on_in_its_old_epoch_r3(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Replicator._stand

    async def go_on(self: Replicator, replica: Replica, reason: str, without: int = NOBODY) -> None:
        state = self.directory.state_of(replica.key)
        if reason.endswith("restarted") and state is not None:
            self._lead(replica, state)
        else:
            await stand(self, replica, reason, without)

    monkeypatch.setattr(Replicator, "_stand", go_on)
    with pytest.raises(AssertionError, match="leader_epoch"):
        test_a_restarted_leader_raises_the_epoch_r3(play)


@interpreted
def test_without_frame_numbers_an_answer_counts_for_another_frame_r4(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def oldest(self: Any, _number: int, _taken: object = None) -> list[Any]:
        sent = self.sent.popleft()
        for _, backup, log_start in sent.told:
            backup.start_acked = max(backup.start_acked, log_start)
        shipments: list[Any] = sent.shipments
        return shipments

    monkeypatch.setattr("penstock.replication.link._Lane.answered", oldest)
    with pytest.raises(AssertionError, match="connection before"):
        test_an_answer_to_a_frame_counts_for_its_connection_and_its_handshake_only_r4(play)


async def test_without_producers_going_back_a_new_record_passes_for_a_repeat_r5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truncate = LogStore.truncate

    def records_only(self: LogStore, partition: PartitionLog, offset: int) -> None:
        producers = partition.producers
        truncate(self, partition, offset)
        partition.producers = producers

    monkeypatch.setattr(LogStore, "truncate", records_only)
    with pytest.raises(AssertionError, match="duplicate"):
        await test_truncation_takes_records_and_producers_back_into_a_new_segment_r5(tmp_path)


@interpreted
def test_without_min_insync_replicas_a_lone_leader_commits_r6(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Leadership.advance

    def careless(self: Leadership) -> None:
        config = self.log.config
        self.log.configure(replace(config, min_insync_replicas=1))
        advance(self)
        self.log.configure(config)

    monkeypatch.setattr(Leadership, "advance", careless)
    with pytest.raises(AssertionError):
        test_the_watermark_stands_still_below_min_insync_replicas_r6(play)


@interpreted
@pytest.mark.parametrize(("window", "harm"), [("one for all", "not within"), ("none", "more than a window")])
def test_without_a_window_for_each_partition_one_holds_up_the_others_or_has_no_end_r10(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch, window: str, harm: str
) -> None:
    def room(self: Backup) -> int:
        if window == "none":
            return leadership.WINDOW
        assert isinstance(self.sender, Link)
        all_led = self.sender.led.values()
        return leadership.WINDOW - sum(led.backups[self.broker]._unacknowledged for led in all_led)

    monkeypatch.setattr(Backup, "room", property(room))
    with pytest.raises(AssertionError, match=harm):
        test_one_partition_that_stands_still_holds_up_no_other_on_its_connection_r10(play, monkeypatch)


def test_on_one_connection_a_catch_up_holds_up_heartbeats_r10(play: Callable[..., None]) -> None:
    with pytest.raises(AssertionError, match=r"taken for dead|heartbeats wait"):
        play(catch_up_stands_still(own_connection=False))


def test_without_a_hold_down_a_dropped_backup_is_added_again_at_once_r10(play: Callable[..., None]) -> None:
    with pytest.raises(AssertionError, match="added again"):
        play(flapping(0.0))


def test_without_the_log_start_in_frames_deleted_records_come_back_r11(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogStore, "follow_log_start", lambda self, partition, offset: None)
    with pytest.raises(KafkaError, match="yet to hear of it"):
        test_the_log_start_goes_to_every_replica_and_stays_r11(play)


@pytest.mark.parametrize("fault", ["cut off", "deposed meanwhile", "refused"])
def test_without_waiting_for_replicas_records_count_as_deleted_too_soon_r11(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    told = Replicator.told

    async def hardly(self: Replicator, partition: PartitionLog, term: int) -> None:
        with contextlib.suppress(KafkaError):
            await told(self, partition, term, timeout=0.2)

    monkeypatch.setattr(Replicator, "told", hardly)
    with pytest.raises(AssertionError, match="none"):
        test_records_count_as_deleted_only_when_every_replica_knows_r11(play, fault)


@interpreted
def test_without_a_mark_in_shared_memory_readers_trust_a_deposed_leader_r12(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    step_down = PartitionLog.step_down

    def in_silence(self: PartitionLog) -> None:
        before = self.control.state
        step_down(self)
        self.control.state = before

    monkeypatch.setattr(PartitionLog, "step_down", in_silence)
    with pytest.raises(AssertionError, match="not within"):
        test_a_deposed_leader_can_commit_nothing_and_is_cut_to_the_common_prefix_r12(play)


def test_a_replica_that_is_placed_here_again_waits_until_the_last_one_is_gone(
    play: Callable[..., None],
) -> None:
    """To close one takes a while, and takes its directories with it."""

    async def scenario(world: World) -> None:
        backup = other(world, await world.leading())
        assert backup.replicator is not None
        assert await world.produce() is ErrorCode.none
        backup.replicator._close_replica(world.key)
        backup.replicator.topic_changed(backup.replicator.directory.by_id[world.key[0]])
        await asyncio.sleep(3)
        await world.in_sync(2)
        assert await world.produce() is ErrorCode.none
        log = log_of(backup, world)
        assert not log.deleted
        assert log.memory_directory.exists()
        assert log.disk_directory.exists()
        await asyncio.sleep(1)
        world.check()

    play(scenario)


@pytest.mark.parametrize("known", [0, 1])
def test_a_backup_whose_epochs_were_compacted_away_here_is_copied_anew(
    play: Callable[..., None], known: int
) -> None:
    """The leader knows none, or only the first, of the epochs that the backup has."""

    async def scenario(world: World) -> None:
        for _ in range(2):
            leader = await world.leading()
            for _ in range(5):
                assert await world.produce() is ErrorCode.none
            leader.crash()
            await world.until(lambda crashed=leader: other(world, crashed).led(world.key))
            await leader.start()
            await world.in_sync(2)
        leader = await world.leading()
        log = log_of(leader, world)
        assert len(log.epochs) >= 2
        forgotten = log.epochs[known:]
        del log.epochs[known:]
        assert leader.replicator is not None
        backup = other(world, leader)
        leader.replicator.links[backup.number].hang_up()
        await world.in_sync(1)
        await world.in_sync(2)
        assert log_of(backup, world).damage is None
        assert leader.led(world.key) is log
        log.epochs[known:known] = forgotten  # its records were not really taken
        await asyncio.sleep(1)
        world.check()

    play(scenario)
