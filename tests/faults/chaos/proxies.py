"""Machines on the loopback, joined by TCP proxies that cut and delay, where namespaces are not allowed.

What listens on a machine is reached through a door: an address of ours, behind which every direction of every
connection has a queue. TCP sends again what was lost, so nothing is: a cut holds bytes back, in their
order, until the queue is full and no more is read, and loss makes them late by as many retransmissions.

Unlike on a real network a connection is made at once even where nothing passes (as by a machine
that hangs), and TCP's own acknowledgements go by no door: one way cut, the other goes on as long as it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from functools import partial
from itertools import permutations
from typing import Final

from chaos.network import Weather
from penstock.replication import frames

CLIENTS: Final = "clients"
"""Everybody who is not a machine of the cluster."""
_CHUNK: Final = 64 << 10
_CHUNKS: Final = 32
"""In the queue of one direction of one connection."""
_RETRANSMISSION: Final = 0.2
"""Seconds until TCP sends again; twice as long each further time."""
_REFUSED: Final = 0.1
"""Seconds until a dialler hears that nobody listens: by then it has a connection, and soon dials again."""


class _Way:
    """One direction between two machines."""

    def __init__(self, chance: random.Random) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self._chance = chance
        self._cuts = 0
        self._weathers: list[Weather] = []

    def cut(self) -> None:
        self._cuts += 1
        self.is_open.clear()

    def mend(self) -> None:
        """Two faults may want the same; the last lifts it."""
        self._cuts -= 1
        if not self._cuts:
            self.is_open.set()

    def hold(self, weather: Weather) -> None:
        self._weathers.append(weather)

    def release(self) -> None:
        self._weathers.pop()

    def lateness(self) -> float:
        if not self._weathers:
            return 0.0
        weather = self._weathers[-1]
        late, again = weather.delay + self._chance.random() * weather.jitter, _RETRANSMISSION
        while self._chance.random() < weather.loss:
            late, again = late + again, 2 * again
        return late


class _Stream:
    """One direction of one connection. An end of the stream is held back like any other byte."""

    def __init__(self, way: _Way) -> None:
        self._way = way
        self._now = asyncio.get_running_loop().time
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS)

    async def take(self, source: asyncio.StreamReader, said: bytes = b"") -> None:
        """Until the source ends; `said` is what it has said already."""
        due = 0.0
        while True:
            if not said:
                with contextlib.suppress(OSError):
                    said = await source.read(_CHUNK)
            due = max(due, self._now() + self._way.lateness())  # late, not shuffled
            await self._queue.put((due, said))
            if not said:
                return
            said = b""

    async def give(self, sink: asyncio.StreamWriter) -> None:
        """A sink that is gone takes all: its own stream ends too, and tells the other side."""
        is_there = True
        while True:
            due, said = await self._queue.get()
            await asyncio.sleep(max(0.0, due - self._now()))
            await self._way.is_open.wait()
            try:
                if not said:
                    sink.write_eof()
                elif is_there:
                    sink.write(said)
                    await sink.drain()
            except OSError:
                is_there = False
            if not said:
                return


class Proxies:
    """A network with the faults of `network.Network`, for machines whose addresses are told by `door`."""

    def __init__(self, machines: list[str], seed: int) -> None:
        self._ends = [*machines, CLIENTS]
        chance = random.Random(seed)
        self._ways = {pair: _Way(chance) for pair in permutations(self._ends, 2)}
        self._serving: set[asyncio.Task[None] | None] = set()
        """asyncio itself lets go of a connection's task when the connection is lost."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def door(self, sender: str | None, receiver: str, address: str) -> str:
        """Where `sender` finds what listens at `address` on the machine `receiver`.

        None: the replication port, for every broker; what a broker says first tells which it is.
        """
        serve = partial(self._serve, sender, receiver, address)
        starting = asyncio.start_server(serve, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    # Faults. The loop does these before it reads anything that is sent afterwards.

    def drop(self, sender: str, receiver: str) -> None:
        """Nothing from one reaches the other; the opposite direction is untouched."""
        self._loop.call_soon_threadsafe(self._ways[sender, receiver].cut)

    def deliver(self, sender: str, receiver: str) -> None:
        self._loop.call_soon_threadsafe(self._ways[sender, receiver].mend)

    def hold(self, sender: str, receiver: str, weather: Weather) -> None:
        """What goes in this direction is late, or lost by chance and so later."""
        self._loop.call_soon_threadsafe(self._ways[sender, receiver].hold, weather)

    def release(self, sender: str, receiver: str) -> None:
        self._loop.call_soon_threadsafe(self._ways[sender, receiver].release)

    def unplug(self, name: str) -> None:
        """Off from everybody, clients too."""
        for pair in self._ways:
            if name in pair:
                self.drop(*pair)

    def plug(self, name: str) -> None:
        for pair in self._ways:
            if name in pair:
                self.deliver(*pair)

    # Connections

    async def _serve(
        self,
        sender: str | None,
        receiver: str,
        address: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        writers = [writer]
        self._serving.add(task := asyncio.current_task())
        try:
            async with asyncio.TaskGroup() as tasks:
                said = b""
                if sender is None:
                    sender, said = await _hello(reader)
                there, back = self._ways[sender, receiver], self._ways[receiver, sender]
                asked = _Stream(there)
                taking = tasks.create_task(asked.take(reader, said))
                await there.is_open.wait()
                await back.is_open.wait()
                if taking.done():
                    return  # it has given up by now: on a real network nobody would have heard of it
                host, port = address.rsplit(":", 1)
                answers, far = await asyncio.open_connection(host, int(port))
                writers.append(far)
                answered = _Stream(back)
                tasks.create_task(asked.give(far))
                tasks.create_task(answered.take(answers))
                tasks.create_task(answered.give(writer))
        except* asyncio.IncompleteReadError:
            pass  # gone before it said who it is
        except* OSError:
            await asyncio.sleep(_REFUSED)
        finally:
            for each in writers:
                each.transport.abort()
            self._serving.discard(task)


async def _hello(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Which broker dials, and the bytes that say so."""
    head = await reader.readexactly(frames.HEAD.size)
    body = await reader.readexactly(frames.HEAD.unpack(head)[0] - 1)
    return f"broker-{frames.read_message(memoryview(body))['broker']}", head + body
