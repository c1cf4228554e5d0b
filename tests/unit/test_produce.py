"""Produce, from a frame to its answer: what is promised before it is said."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from log_rig import LogRig

from penstock.broker.catalog import Catalog
from penstock.broker.produce import ProduceHandler
from penstock.broker.reply import Later, Reply
from penstock.broker.stats import RequestStats
from penstock.cluster.topics import PartitionInfo, Topic
from penstock.log.partition import PartitionLog
from penstock.wire.head import read_head
from rawclient import produce_tree, read_response, record_batch, request_bytes

VERSION = 9


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LogRig]:
    made = LogRig(tmp_path)
    yield made
    made.close()


def handler_of(rig: LogRig, log: PartitionLog) -> ProduceHandler:
    topic = Topic("t", uuid.UUID(bytes=rig.topic_id), {}, (PartitionInfo(1, 0, (1,), (1,)),), 0, log.config)
    catalog = Catalog()
    catalog.put(topic, [log])
    return ProduceHandler(catalog, rig.store, RequestStats())


def ask(handler: ProduceHandler, records: bytes) -> Reply | Later | None:
    frame = memoryview(request_bytes(0, VERSION, produce_tree("t", records)))[4:]
    return handler.handle(read_head(frame), frame)


def base_offset(reply: Reply | None) -> int:
    assert reply is not None
    _, response = read_response(0, VERSION, bytes(reply.buffers[0])[4:])
    (partition,) = response.responses[0].partition_responses
    assert int(partition.error_code) == 0
    return int(partition.base_offset)


async def test_a_repeat_of_a_batch_that_is_not_committed_waits_for_its_commit_too_r5(rig: LogRig) -> None:
    """Answered at once, it would be acknowledged and then lost with a leader that dies before the commit."""
    (log,) = rig.open({"durability": "disk"})
    handler = handler_of(rig, log)
    batch = record_batch([b"once"], producer=(7, 0, 0))
    first, again = ask(handler, batch), ask(handler, batch)
    assert isinstance(first, Later)
    assert isinstance(again, Later), "answered before it was on disk"
    assert log.high_watermark == 0
    assert base_offset(await first.work) == base_offset(await again.work) == 0
    assert log.high_watermark == log.log_end == 1
    committed = ask(handler, batch)
    assert isinstance(committed, Reply), "it is committed: nothing is left to wait for"
    assert base_offset(committed) == 0
    await rig.store.stop()
