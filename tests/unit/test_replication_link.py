"""A link dials until it is closed, whatever happens to the connections it gets."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import uvloop

from penstock.replication import frames
from penstock.replication.channel import Channel, TcpNetwork
from penstock.replication.frames import Draft
from penstock.replication.link import Link


class _Connection:
    def __init__(self) -> None:
        self.is_closed = False
        self.is_stuck = False

    def send(self, buffers: object) -> None: ...

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


async def test_a_connection_that_broke_at_once_is_dialled_again() -> None:
    network = _Network(broken=2)
    replicator: Any = SimpleNamespace(
        network=network,
        now=asyncio.get_running_loop().time,
        address_of=lambda _broker: ("nowhere", 1),
        hello=lambda _broker, _lane: {},
        link_lost=lambda _link: None,
    )
    link = Link(replicator, 2)
    await asyncio.wait_for(network.reached.wait(), 5)
    assert network.dialled == 3
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
