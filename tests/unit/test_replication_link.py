"""A link dials until it is closed, whatever happens to the connections it gets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from log_rig import LogRig, put
from simulation import interpreted

from penstock.cluster.partitions import Member, PartitionState
from penstock.log.partition import PartitionLog
from penstock.log.segment import Segment
from penstock.replication import frames
from penstock.replication.channel import Channel, TcpNetwork
from penstock.replication.frames import Draft
from penstock.replication.leadership import Backup, Leadership, Run, Shipment
from penstock.replication.link import Link


class _Connection:
    def __init__(self) -> None:
        self.is_closed = False
        self.is_stuck = False
        self.sent = 0

    def send(self, buffers: object) -> None:
        self.sent += 1

    def close(self) -> None:
        self.is_closed = True


class _Network:
    """The first connections break in the very moment in which they are made."""

    def __init__(self, broken: int) -> None:
        self.broken, self.dialled = broken, 0
        self.reached = asyncio.Event()

    async def dial(self, address: tuple[str, int], handler: Any) -> _Connection:
        self.dialled += 1
        connection = _Connection()
        if self.dialled <= self.broken:
            connection.close()
            handler.lost()
        else:
            self.reached.set()
        return connection


async def _linked(network: _Network) -> Link:
    replicator: Any = SimpleNamespace(
        network=network,
        now=asyncio.get_running_loop().time,
        address_of=lambda _broker: ("nowhere", 1),
        hello=lambda _broker, _lane: {},
        link_lost=lambda _link: None,
        has_left=lambda _broker: False,
    )
    link = Link(replicator, 2)
    await asyncio.wait_for(network.reached.wait(), 5)
    return link


async def test_a_connection_that_broke_at_once_is_dialled_again() -> None:
    network = _Network(broken=2)
    link = await _linked(network)
    assert network.dialled == 3
    await link.close()


async def test_behind_a_short_frame_the_next_waits_behind_a_long_one_a_second_goes() -> None:
    link = await _linked(_Network(broken=0))
    await asyncio.sleep(0)
    lane = link._live

    def send(size: int) -> None:
        draft = Draft()
        draft.add((b"t" * 16, 0), 1, 0, 0, 0, memoryview(bytes(size)))
        lane.send(draft, [], [], [], 0.0)

    assert not lane.is_full
    send(1_000)
    assert lane.is_full
    lane.answered(1)
    send(1 << 20)
    assert not lane.is_full
    send(1 << 20)
    assert lane.is_full
    lane.answered(2)
    assert not lane.is_full
    send(1_000)  # a long one is still under way before it
    assert lane.is_full
    await link.close()


class _Keeps:
    """The bodies that came, and whether the connection is lost."""

    def __init__(self, expected: int) -> None:
        self.came: list[tuple[int, bytes]] = []
        self.expected = expected
        self.complete = asyncio.Event()
        self.closed = asyncio.Event()

    def frame(self, kind: int, body: memoryview) -> None:
        self.came.append((kind, bytes(body)))
        if len(self.came) == self.expected:
            self.complete.set()

    def lost(self) -> None:
        self.closed.set()


def test_frames_of_every_size_come_whole_and_in_order_over_tcp() -> None:
    """On uvloop, as brokers run: smaller than a buffer, larger, many in one piece, and many times larger."""

    async def scenario() -> None:
        sizes = [0, 1, 100, 300_000, 70_000, 5_000_000, 10, 10, 10, 262_139, 262_140, 5]
        network, there, here = TcpNetwork(), _Keeps(len(sizes)), _Keeps(1)
        accepted: list[Channel] = []

        def accept(channel: Channel) -> _Keeps:
            accepted.append(channel)
            return there

        port, stop = await network.listen(("127.0.0.1", 0), accept)
        channel = await network.dial(("127.0.0.1", port), here)
        for number, size in enumerate(sizes, 1):
            records = memoryview(bytes([number]) * size) if size else None
            draft = Draft()
            for _ in range(2):
                draft.add((b"t" * 16, 3), 4, 5, 6, 7, records)
            channel.send(draft.finish(number))
        await asyncio.wait_for(there.complete.wait(), 10)
        for number, size in enumerate(sizes, 1):
            kind, body = there.came[number - 1]
            assert kind == frames.DATA
            told, sections = frames.read_data(memoryview(body))
            assert told == number
            for section in sections:
                assert (section.key, section.epoch, section.base) == ((b"t" * 16, 3), 4, 5)
                assert (section.high_watermark, section.log_start) == (6, 7)
                assert bytes(section.records or b"") == bytes([number]) * size
            assert len(sections) == 2
        accepted[0].send(frames.acks(9, [((b"t" * 16, 3), 4, 1 << 40)]))
        await asyncio.wait_for(here.complete.wait(), 10)
        assert frames.read_acks(memoryview(here.came[0][1])) == (9, [((b"t" * 16, 3), 4, 1 << 40)])
        channel.close()
        await asyncio.wait_for(there.closed.wait(), 10)
        stop()

    uvloop.run(scenario())


async def test_an_answer_to_a_frame_from_before_a_partition_left_and_came_back_counts_for_nothing_r4(
    tmp_path: Path,
) -> None:
    """In one epoch: the log that had those records was deleted meanwhile."""
    me = Member(1, 11)
    rig = LogRig(tmp_path)
    (log,) = rig.open()
    for _ in range(4):
        put(log, [b"x"])
    link = await _linked(_Network(broken=0))
    await asyncio.sleep(0)
    lane = link._live
    led = Leadership(log, PartitionState(1, 5, (1, 2), (me,)), me, 0.0)
    link.led[led.key] = led
    before = led.backups[2]
    before.attach(22, 0, 0, 0.0)
    shipment = Shipment(before, 4, 100)
    before.sent_up_to(shipment, 0.0)
    lane.send(Draft(), [shipment], [], [], 0.0)
    led.note(PartitionState(1, 5, (1,), (me,)), 0.0)
    led.note(PartitionState(1, 5, (1, 2), (me,)), 0.0)
    now = led.backups[2]
    now.attach(33, 0, 0, 0.0)
    now.sent = 4
    answer = b"".join(bytes(each) for each in frames.acks(1, [(led.key, 5, 4)]))
    link.frame(lane, frames.ACK, memoryview(answer)[frames.HEAD.size :])
    assert now.acked == 0
    await link.close()
    await rig.crash()
    rig.close()


@interpreted
async def test_one_partition_that_can_not_be_sent_holds_up_no_other_r10(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, real = Member(1, 11), Backup.take

    def take(self: Backup, log: PartitionLog, limit: int) -> Run | None:
        if log.partition == 0:
            raise ValueError("its index makes no sense")
        return real(self, log, limit)

    monkeypatch.setattr(Backup, "take", take)
    rig = LogRig(tmp_path)
    link = await _linked(_Network(broken=0))
    await asyncio.sleep(0)
    backups = []
    for log in rig.open(partitions=2):
        led = Leadership(log, PartitionState(1, 5, (1, 2), (me,)), me, 0.0)
        link.led[led.key] = led
        backup = led.backups[2]
        backup.attach(22, 0, 0, 0.0)
        backup.streaming, backup.sender = True, link
        put(log, [b"x"])
        link.note(backup)
        backups.append(backup)
    await asyncio.sleep(0.01)
    assert [backup.sent for backup in backups] == [0, 1]
    assert not any(backup.noted for backup in backups)
    await link.close()
    await rig.crash()
    rig.close()


async def test_what_was_read_from_disk_before_another_handshake_is_not_sent(tmp_path: Path) -> None:
    """The backup has gone on, or back, since: what came next then would leave a hole in its log now."""
    rig = LogRig(tmp_path)
    (log,) = rig.open()
    for _ in range(20):
        put(log, [b"x"])
    log.roll()
    await rig.store.write_behind.durable()
    log.evict(log.segments[0])
    go_on = asyncio.Event()

    async def read_cold(segment: Segment, offset: int, limit: int) -> bytes:
        await go_on.wait()
        return segment.read_cold(offset, limit, segment.size)

    replicator: Any = SimpleNamespace(
        now=asyncio.get_running_loop().time, address_of=lambda _broker: None, read_cold=read_cold
    )
    me = Member(1, log.storage_id)
    led = Leadership(log, PartitionState(1, 5, (1, 2), (me,)), me, 0.0)
    backup = led.backups[2]
    backup.attach(22, 15, 15, 0.0)
    link = Link(replicator, 2)
    link.led[led.key] = led
    connection: Any = _Connection()
    link._bulk.channel = connection
    sending = asyncio.create_task(link._send_chunk(led.key, led, backup))
    await asyncio.sleep(0.01)
    backup.detach()
    backup.handshake += 1
    backup.attach(22, 10, 10, 0.0)
    go_on.set()
    await asyncio.sleep(0.01)
    assert connection.sent == 0
    assert backup.sent == 10
    await asyncio.wait_for(sending, 1)
    await link.close()
    await rig.store.stop()
    rig.close()
