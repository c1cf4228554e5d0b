"""What the load makes of a broker's answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from penstock.load.chunks import ANSWERED_PARTITION, ChunkRequest, different, make_chunk
from penstock.load.run import LoadFailed, LoadPlan, LoadReport, run_load
from penstock.wire.errors import ErrorCode
from penstock.wire.records import Compression, decode_records

FULL = ErrorCode.kafka_storage_error


@asynccontextmanager
async def answering(
    codes: Sequence[ErrorCode], stall: float = 0.0, seen: list[bytes] | None = None
) -> AsyncIterator[str]:
    """The address of one that answers requests with these codes, over and over; the tenth after a `stall`.
    What it was sent goes into `seen`."""
    first = ChunkRequest("t", [0], b"", 0, 1).first_answer
    turns = itertools.cycle(codes)
    numbers = itertools.count(1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                if seen is not None:
                    seen.append(request)
                if next(numbers) == 10:
                    await asyncio.sleep(stall)
                answer = bytearray(first + ANSWERED_PARTITION + 4)
                answer[:4] = (len(answer) - 4).to_bytes(4)
                answer[first + 4 : first + 6] = next(turns).value.to_bytes(2)
                writer.write(answer)
        except asyncio.IncompleteReadError:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield "{}:{}".format(*server.sockets[0].getsockname())


async def load(codes: Sequence[ErrorCode]) -> LoadReport:
    async with answering(codes) as address:
        return await run_load(LoadPlan("t", {address: [0]}, chunk=1024, seconds=0.2))


async def test_a_broker_without_room_is_asked_again() -> None:
    report = await load([FULL, ErrorCode.none])
    assert report.records > 0
    assert report.refused > 0
    assert report.failure is None


async def test_a_broker_that_never_has_room_is_a_failure() -> None:
    with pytest.raises(LoadFailed, match="kafka_storage_error"):
        await load([FULL])


async def test_any_other_refusal_is_a_failure() -> None:
    report = await load([ErrorCode.none, ErrorCode.message_too_large])
    assert report.failure == "partition 0 refused its chunk: message_too_large"


async def test_what_a_stall_held_up_is_still_sent_and_late_since_it_was_due() -> None:
    plan = LoadPlan("t", {}, chunk=1024, seconds=0.8, rate=800.0)
    async with answering([ErrorCode.none], stall=0.5) as address:
        report = await run_load(replace(plan, leaders={address: [0]}))
    assert report.records == pytest.approx(640, rel=0.1)
    assert report.latency_ms_p50 is not None
    assert report.latency_ms_p50 > 20


@pytest.mark.parametrize("pipeline", [1, 100])
async def test_requests_differ_and_are_whole(pipeline: int) -> None:
    size = len(make_chunk(4096, 1000, Compression.NONE)[0])
    seen: list[bytes] = []
    plan = LoadPlan("t", {}, chunk=4096, record=1000, seconds=0.5, pipeline=pipeline, text=True)
    async with answering([ErrorCode.none], seen=seen) as address:
        report = await run_load(replace(plan, leaders={address: [0]}))
    assert len(seen) > 200
    assert report.records == 3 * len(seen)
    assert report.bytes == size * len(seen)
    read = [tuple(record.value for record in decode_records(request[-size:])) for request in seen]
    assert len(set(read[:64])) == 64
    assert read == [read[number % max(64, pipeline) % 64] for number in range(len(read))]


def test_large_requests_are_few() -> None:
    assert different(1024) == 64
    assert different(8 << 20) == 4
    assert different(1 << 30) == 1
