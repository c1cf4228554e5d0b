"""Produce, from a frame to its answer: what is promised before it is said."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from log_rig import LogRig
from simulation import interpreted

from penstock.broker.catalog import Catalog
from penstock.broker.produce import ProduceHandler
from penstock.broker.reply import Answer, Hand, Promise, Reply
from penstock.broker.stats import RequestStats
from penstock.cluster.topics import PartitionInfo, Topic
from penstock.log.partition import AppendResult, PartitionLog
from penstock.wire.batch import BatchHeader, Buffer
from penstock.wire.errors import ErrorCode
from penstock.wire.head import read_head
from rawclient import produce_tree, read_response, record_batch, request_bytes

VERSION = 9


def handler_of(rig: LogRig, log: PartitionLog) -> ProduceHandler:
    topic = Topic("t", uuid.UUID(bytes=rig.topic_id), {}, (PartitionInfo(1, 0, (1,), (1,)),), 0, log.config)
    catalog = Catalog()
    catalog.put(topic, [log])
    return ProduceHandler(catalog, rig.store, RequestStats())


def ask(handler: ProduceHandler, records: bytes, timeout: int = 5000) -> Answer:
    frame = memoryview(request_bytes(0, VERSION, produce_tree("t", records, timeout=timeout)))[4:]
    return handler.handle(read_head(frame), frame)


def error_of(reply: Answer) -> ErrorCode:
    assert isinstance(reply, Reply)
    _, response = read_response(0, VERSION, bytes(reply.buffers[0])[4:])
    return ErrorCode(int(response.responses[0].partition_responses[0].error_code))


def base_offset(reply: Reply | None) -> int:
    assert reply is not None
    _, response = read_response(0, VERSION, bytes(reply.buffers[0])[4:])
    (partition,) = response.responses[0].partition_responses
    assert int(partition.error_code) == 0
    return int(partition.base_offset)


async def kept(answer: Answer) -> Reply:
    assert isinstance(answer, Promise)
    hand = Hand()
    answer.give_to(hand)
    return await asyncio.wait_for(hand.reply, 5)


async def test_a_repeat_of_a_batch_that_is_not_committed_waits_for_its_commit_too_r5(rig: LogRig) -> None:
    """Answered at once, it would be acknowledged and then lost with a leader that dies before the commit."""
    (log,) = rig.open({"durability": "disk"})
    handler = handler_of(rig, log)
    batch = record_batch([b"once"], producer=(7, 0, 0))
    first, again = ask(handler, batch), ask(handler, batch)
    assert isinstance(first, Promise)
    assert isinstance(again, Promise), "answered before it was on disk"
    assert log.high_watermark == 0
    assert base_offset(await kept(first)) == base_offset(await kept(again)) == 0
    assert log.high_watermark == log.log_end == 1
    committed = ask(handler, batch)
    assert isinstance(committed, Reply), "it is committed: nothing is left to wait for"
    assert base_offset(committed) == 0
    await rig.store.stop()


@interpreted
async def test_without_that_wait_a_repeat_is_acknowledged_too_soon_r5(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test of the test: without the rule the schedule above does its harm and is noticed."""
    append = PartitionLog.append

    def hasty(self: PartitionLog, header: BatchHeader, records: Buffer) -> AppendResult:
        result = append(self, header, records)
        if result.duplicate:
            result.next_offset = 0
        return result

    monkeypatch.setattr(PartitionLog, "append", hasty)
    with pytest.raises(AssertionError, match="answered before it was on disk"):
        await test_a_repeat_of_a_batch_that_is_not_committed_waits_for_its_commit_too_r5(rig)
    await rig.store.stop()


async def test_a_batch_behind_a_refused_one_is_to_be_tried_again_and_is_not_out_of_order(rig: LogRig) -> None:
    """Out of order, librdkafka would begin a new epoch and write again what it has no answer for."""
    (log,) = rig.open()
    handler = handler_of(rig, log)

    def send(sequence: int) -> ErrorCode:
        return error_of(ask(handler, record_batch([b"one"], producer=(7, 0, sequence))))

    assert send(0) is ErrorCode.none
    assert send(2) is ErrorCode.out_of_order_sequence_number  # a gap of the producer's own
    log.short_of_replicas = True
    assert error_of(ask(handler, record_batch([b"one"], producer=(7, 0, 1)))) is ErrorCode.not_enough_replicas
    log.short_of_replicas = False
    assert send(2) is ErrorCode.not_leader_or_follower
    assert send(1) is ErrorCode.none
    assert send(2) is ErrorCode.none
    assert send(0) is ErrorCode.none  # a repeat of the first
    assert log.log_end == 3


async def test_a_leader_that_refused_before_it_led_waits_for_what_comes_first(rig: LogRig) -> None:
    (log,) = rig.open()
    handler = handler_of(rig, log)
    log.excuse_gaps()
    assert error_of(ask(handler, record_batch([b"one"], producer=(7, 0, 0)))) is ErrorCode.none
    for early in ((7, 0, 2), (8, 0, 1)):  # one that it knows, and one whose very first batch was refused
        refused = ask(handler, record_batch([b"one"], producer=early))
        assert error_of(refused) is ErrorCode.not_leader_or_follower


async def test_an_answer_waits_for_its_own_commit_only(rig: LogRig) -> None:
    (log,) = rig.open()
    log.replicated = True
    handler = handler_of(rig, log)
    first, second = (ask(handler, record_batch([b"one"])) for _ in range(2))
    log.commit(1)
    assert base_offset(await kept(first)) == 0
    assert isinstance(second, Promise)
    hand = Hand()
    second.give_to(hand)
    assert not hand.reply.done(), "answered before it was committed"
    log.commit(2)
    assert base_offset(hand.reply.result()) == 1


async def test_who_waits_is_told_when_too_few_replicas_are_left_r6(rig: LogRig) -> None:
    (log,) = rig.open()
    log.replicated = True
    handler = handler_of(rig, log)
    waiting = ask(handler, record_batch([b"one"]))
    log.short_of_replicas = True
    log.wake()
    assert error_of(await kept(waiting)) is ErrorCode.not_enough_replicas_after_append


async def test_a_deposed_leader_never_says_that_what_it_appended_was_not_written_r4(rig: LogRig) -> None:
    (log,) = rig.open()
    log.replicated = True
    handler = handler_of(rig, log)
    waiting = ask(handler, record_batch([b"one"]))
    log.step_down()
    assert error_of(await kept(waiting)) is ErrorCode.not_enough_replicas_after_append


async def test_what_is_not_committed_in_time_is_said_so_and_forgotten(rig: LogRig) -> None:
    (log,) = rig.open()
    log.replicated = True
    handler = handler_of(rig, log)
    slow = ask(handler, record_batch([b"one"]), timeout=10)
    assert error_of(await kept(slow)) is ErrorCode.request_timed_out
    log.commit(1)  # nobody is told twice
    assert base_offset(await kept(ask_after_commit(handler, log))) == 1
    assert log.high_watermark == 2


def ask_after_commit(handler: ProduceHandler, log: PartitionLog) -> Answer:
    answer = ask(handler, record_batch([b"two"]))
    log.commit(log.log_end)
    return answer
