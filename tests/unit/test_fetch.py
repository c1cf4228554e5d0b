"""Fetch and ListOffsets from disk: what became of the log while the disk was busy decides the answer."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from typing import Any, cast

import pytest
from log_rig import NOW, LogRig, put

from penstock.broker import offsets
from penstock.broker.catalog import Catalog
from penstock.broker.context import BrokerContext
from penstock.broker.fetch import FetchHandler
from penstock.broker.offsets import OffsetHandlers
from penstock.broker.reply import Later
from penstock.broker.stats import RequestStats
from penstock.cluster.topics import PartitionInfo, Topic
from penstock.log.partition import PartitionLog
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.head import read_head
from penstock.wire.messages import read_request
from rawclient import read_response, request_bytes

VERSION = 11


class BusyDisk:
    """A fetch of a log's first offset, which is on disk only, held up until `done`."""

    def __init__(self, rig: LogRig, log: PartitionLog) -> None:
        partition = PartitionInfo(1, 0, (1,), (1,))
        catalog = Catalog()
        catalog.put(Topic("t", uuid.UUID(bytes=rig.topic_id), {}, (partition,), 0, log.config), [log])
        handler = FetchHandler(catalog, RequestStats(), 1 << 20, disk_threads=1)
        self._go_on = threading.Event()
        handler._disk.submit(self._go_on.wait, 10)
        wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        tree = {"max_bytes": 1 << 20, "topics": [{"topic": "t", "partitions": [wanted]}]}
        frame = memoryview(request_bytes(1, VERSION, tree))[4:]
        head = read_head(frame)
        answer = handler.handle(head, read_request(head, frame).body)
        assert isinstance(answer, Later)
        self._work = asyncio.ensure_future(answer.work)
        self.log_start = -1

    async def done(self) -> tuple[ErrorCode, bytes]:
        self._go_on.set()
        reply = await asyncio.wait_for(self._work, 5)
        assert reply is not None
        _, response = read_response(1, VERSION, b"".join(map(bytes, reply.buffers))[4:])
        (partition,) = response.responses[0].partitions
        self.log_start = partition.log_start_offset
        return ErrorCode(int(partition.error_code)), bytes(partition.records or b"")


async def cold_log(rig: LogRig) -> PartitionLog:
    (log,) = rig.open()
    for _ in range(2):
        put(log, [b"on disk"])
        log.roll()
    await rig.store.write_behind.durable()
    log.evict(log.segments[0])
    return log


async def test_what_is_on_disk_is_fetched(rig: LogRig) -> None:
    error, records = await BusyDisk(rig, await cold_log(rig)).done()
    assert error is ErrorCode.none
    assert b"on disk" in records
    await rig.store.stop()


async def test_a_replica_that_moved_away_meanwhile_sends_the_reader_after_it(rig: LogRig) -> None:
    """Out of range, a consumer that begins at the end when lost would skip all that there is."""
    log = await cold_log(rig)
    fetch = BusyDisk(rig, log)
    await asyncio.sleep(0)
    await rig.store.close_partition(log, delete=True)
    assert await fetch.done() == (ErrorCode.not_leader_or_follower, b"")
    await rig.store.stop()


async def test_nothing_is_answered_for_a_leadership_that_is_over(rig: LogRig) -> None:
    log = await cold_log(rig)
    fetch = BusyDisk(rig, log)
    log.step_down()
    log.serve(rig.store.incarnation)  # and it leads again
    assert await fetch.done() == (ErrorCode.not_leader_or_follower, b"")
    await rig.store.stop()


async def test_what_retention_deletes_meanwhile_is_out_of_range(rig: LogRig) -> None:
    log = await cold_log(rig)
    fetch = BusyDisk(rig, log)
    await rig.store.delete_records(log, 1)
    assert await fetch.done() == (ErrorCode.offset_out_of_range, b"")
    assert fetch.log_start == 1, "so that the client knows where to go on"
    await rig.store.stop()


async def test_a_file_that_is_missing_is_not_out_of_range(rig: LogRig) -> None:
    log = await cold_log(rig)
    fetch = BusyDisk(rig, log)
    log.segments[0].path.unlink()
    assert await fetch.done() == (ErrorCode.kafka_storage_error, b"")
    await rig.store.stop()


# ListOffsets by time


async def offset_at_now(
    log: PartitionLog, meanwhile: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> int:
    """Ask for the first offset at `NOW`, and let something happen before the disk is read."""
    on_disk = offsets._on_disk
    go_on = threading.Event()

    def busy(*of: Any) -> Any:
        go_on.wait(10)
        return on_disk(*of)

    monkeypatch.setattr(offsets, "_on_disk", busy)
    handlers = OffsetHandlers(cast(BrokerContext, None))
    asked = asyncio.create_task(handlers._find(log, NOW))
    await asyncio.sleep(0)
    result = meanwhile()
    if result is not None:
        await result
    go_on.set()
    return (await asyncio.wait_for(asked, 5)).offset


async def test_a_time_on_disk_is_found(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await offset_at_now(await cold_log(rig), lambda: None, monkeypatch) == 0
    await rig.store.stop()


async def test_a_time_in_what_retention_deletes_meanwhile_is_looked_for_again(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await cold_log(rig)
    assert await offset_at_now(log, lambda: rig.store.delete_records(log, 1), monkeypatch) == 1
    await rig.store.stop()


async def test_a_time_in_a_file_that_is_missing_is_an_error_of_the_storage(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await cold_log(rig)
    log.segments[0].index = None
    with pytest.raises(KafkaError) as failed:
        await offset_at_now(log, log.segments[0].path.unlink, monkeypatch)
    assert failed.value.code is ErrorCode.kafka_storage_error
    await rig.store.stop()


async def test_a_time_in_a_log_that_moved_away_meanwhile_is_asked_for_elsewhere(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await cold_log(rig)
    with pytest.raises(KafkaError) as failed:
        await offset_at_now(log, lambda: rig.store.close_partition(log, delete=True), monkeypatch)
    assert failed.value.code is ErrorCode.not_leader_or_follower
    await rig.store.stop()
