"""A client's connection over a real socket: frames that come in pieces, large before small."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from penstock.broker.buffers import KEEP, BufferPool
from penstock.broker.connection import OWN_BUFFER, Connection
from penstock.broker.reply import Answer, Later, Reply
from penstock.wire.wakeup import MOST_AT_ONCE

SIZES = (10, OWN_BUFFER + 1, 5, MOST_AT_ONCE + 77, 3_000_000, 1)


def _echo(frame: memoryview, connection: Connection) -> Answer:
    return Reply((struct.pack(">ii", len(frame), sum(frame[:10])),))


def _echo_later(frame: memoryview, connection: Connection) -> Answer:
    async def answer() -> Reply:
        await asyncio.sleep(0.005)
        return Reply((struct.pack(">ii", len(frame), sum(frame[:10])),))

    return Later(answer(), blocks=True)


@asynccontextmanager
async def _client(
    dispatch: Callable[[memoryview, Connection], Answer], buffers: BufferPool | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    loop = asyncio.get_running_loop()
    buffers = buffers or BufferPool(64 << 20)

    def serve() -> Connection:
        return Connection(dispatch, buffers, 8 << 20, lambda c: None, lambda c: None)

    server = await loop.create_server(serve, "127.0.0.1", 0)  # type: ignore[arg-type, unused-ignore]
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()


def _frame(size: int) -> bytes:
    return struct.pack(">i", size) + bytes([size % 251]) * size


@pytest.mark.parametrize("dispatch", [_echo, _echo_later], ids=["at once", "blocking"])
@pytest.mark.parametrize("piece", [1 << 30, 100_000, 17_000])
def test_every_frame_is_answered_as_soon_as_it_is_whole(
    dispatch: Callable[[memoryview, Connection], Answer], piece: int
) -> None:
    """The next one is only sent then: a connection that waits for more bytes than will come fails here."""

    async def talk() -> None:
        async with _client(dispatch) as (reader, writer):
            for size in SIZES:
                sent = _frame(size)
                for at in range(0, len(sent), piece):
                    writer.write(sent[at : at + piece])
                    await writer.drain()
                    await asyncio.sleep(0)
                answer = await asyncio.wait_for(reader.readexactly(8), 5)
                assert struct.unpack(">ii", answer) == (size, size % 251 * min(size, 10))

    uvloop.run(talk())


def test_frames_back_to_back() -> None:
    async def talk() -> None:
        async with _client(_echo) as (reader, writer):
            writer.write(b"".join(map(_frame, SIZES * 3)))
            for size in SIZES * 3:
                answer = await asyncio.wait_for(reader.readexactly(8), 5)
                assert struct.unpack(">ii", answer)[0] == size

    uvloop.run(talk())


def test_room_for_a_large_frame_is_made_at_once_for_who_has_sent_one() -> None:
    """The first one's buffer grows with what came, whatever its length promises."""
    buffers = BufferPool(64 << 20)
    frame = _frame(7_000_000)

    async def run() -> list[int]:
        seen = []
        async with _client(_echo, buffers) as (reader, writer):
            for _ in range(2):
                writer.write(frame[:1_000_000])
                async with asyncio.timeout(10):
                    while not buffers.borrowed:  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
                seen.append(buffers.borrowed)
                writer.write(frame[1_000_000:])
                await reader.readexactly(8)
        return seen

    first, second = uvloop.run(run())
    assert first < len(frame) <= second


class _Nobody:
    def give_up_if_idle(self, seconds: float) -> None:
        raise AssertionError


def test_buffers_that_were_used_last_are_kept() -> None:
    pool, holder = BufferPool(1 << 30), _Nobody()
    for size in (KEEP // 2, KEEP // 4, KEEP // 2):
        given = pool.borrow(size, holder)
        assert given is not None
        pool.give_back(given, holder)
    small, large = pool.borrow(KEEP // 4, holder), pool.borrow(KEEP // 2, holder)
    assert large is given
    assert small is not None
    assert pool.borrowed == len(small) + len(large) == KEEP // 4 + KEEP // 2
    another = pool.borrow((8 << 20) + 100, holder)
    assert another is not None
    assert len(another) == 9 << 20
