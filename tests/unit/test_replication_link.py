"""A link dials until it is closed, whatever happens to the connections it gets."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

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
