"""The push reader over real memory, step by step: the walk, its ends, and rules S2, S3, S5, S7 and S9."""

from __future__ import annotations

import itertools
import mmap
import struct
from pathlib import Path

import pytest

from penstock.shm import layout
from penstock.shm.control import NodeControl
from penstock.shm.layout import WORD, PartitionState
from penstock.shm.places import (
    AtTime,
    BrokerGone,
    BrokerRestarted,
    CorruptLog,
    Edge,
    Fenced,
    Gone,
    Interrupted,
    NotInMemory,
    Overwritten,
    Place,
)
from penstock.shm.reader import SILENCE, LogReader
from penstock.wire import batch
from penstock.wire.records import Record, encode_batch
from shm_log import INCARNATION, START_TIME, Clock, MemoryLog


@pytest.fixture
def memory(tmp_path: Path) -> MemoryLog:
    return MemoryLog(tmp_path)


def numbers(reader: LogReader, wait: float = 0) -> list[int]:
    """The offsets that come, each checked against its value."""
    offsets = []
    for _, record in reader.records(wait=wait):
        assert record.value is not None
        assert int(record.value.rstrip(b".")) == record.offset
        offsets.append(record.offset)
    return offsets


# -- the walk -------------------------------------------------------------------------------------------


def test_earliest_reads_everything_across_segments(memory: MemoryLog) -> None:
    memory.append(200)
    assert len(memory.log.segments) > 3
    with memory.reader(Edge.EARLIEST) as reader:
        assert numbers(reader) == list(range(2000))
        memory.append(100)
        assert numbers(reader) == list(range(2000, 3000))


def test_latest_reads_only_what_comes_after(memory: MemoryLog) -> None:
    memory.append(5)
    with memory.reader(Edge.LATEST) as reader:
        assert numbers(reader) == []
        memory.append(60)
        assert numbers(reader) == list(range(50, 650))


def test_a_reader_may_come_before_the_first_record(memory: MemoryLog) -> None:
    with memory.reader(Edge.EARLIEST) as reader:
        assert numbers(reader) == []
        memory.append()
        assert numbers(reader) == list(range(10))


@pytest.mark.parametrize("offset", [0, 1, 9, 10, 11, 399, 1234, 1999, 2000])
def test_an_offset_is_found_inside_segments_and_batches(memory: MemoryLog, offset: int) -> None:
    memory.append(200)
    with memory.reader(offset) as reader:
        assert numbers(reader) == list(range(offset, 2000))
        first = next(iter(memory.reader(offset).batches(wait=0)), None)
        assert (first.start_offset if first else 2000) == offset


@pytest.mark.parametrize("offset", [0, 7, 500, 1999])
def test_a_time_is_found_to_the_record(memory: MemoryLog, offset: int) -> None:
    memory.append(200)
    with memory.reader(AtTime(START_TIME + offset)) as reader:
        assert next(iter(reader.records()))[1].offset == offset


def test_a_time_in_the_future_is_the_end(memory: MemoryLog) -> None:
    memory.append(5)
    with memory.reader(AtTime(START_TIME + 10_000)) as reader:
        assert reader.positions == {memory.place: 50}


def test_a_time_that_may_be_on_disk_is_not_guessed(memory: MemoryLog) -> None:
    memory.append(200)
    memory.evict(2)
    with pytest.raises(NotInMemory) as caught:
        memory.reader(AtTime(START_TIME))
    assert caught.value.offset == 0
    middle = memory.log.segments[3].base_offset
    with memory.reader(AtTime(START_TIME + middle)) as reader:
        assert reader.positions == {memory.place: middle}


def test_a_time_is_not_found_below_the_log_start(memory: MemoryLog) -> None:
    memory.append(5)
    memory.log.advance_log_start(17)
    with memory.reader(AtTime(START_TIME)) as reader:
        assert reader.positions == {memory.place: 17}


def test_a_time_when_all_but_an_empty_segment_is_on_disk_is_not_guessed(memory: MemoryLog) -> None:
    memory.append(200)
    memory.log.roll()
    memory.evict(len(memory.log.segments) - 1)
    with pytest.raises(NotInMemory):
        memory.reader(AtTime(START_TIME + 1500))


def test_what_is_not_committed_is_not_read(tmp_path: Path) -> None:
    memory = MemoryLog(tmp_path, configs={"durability": "disk"})
    memory.append(3)
    with memory.reader(Edge.EARLIEST) as reader:
        assert numbers(reader) == []
        memory.log.commit(20)
        assert numbers(reader) == list(range(20))
        memory.log.commit(30)
        assert numbers(reader) == list(range(20, 30))


def test_leaving_a_batch_half_read_goes_on_with_the_next_record(memory: MemoryLog) -> None:
    memory.append(3)
    with memory.reader(Edge.EARLIEST) as reader:
        for expected in range(30):
            assert next(iter(reader.records()))[1].offset == expected
            assert reader.positions == {memory.place: expected + 1}


def test_several_partitions_take_turns(tmp_path: Path) -> None:
    memory = MemoryLog(tmp_path, partitions=3)
    for partition in range(3):
        memory.append(150, partition=partition)
    with memory.reader(Edge.EARLIEST) as reader:
        seen = [found.place.partition for found in reader.batches(wait=0)]
        assert [seen.count(partition) for partition in range(3)] == [150, 150, 150]
        assert set(seen[:190]) == {0, 1, 2}
        reader.leave(memory.places[1])
        for partition in range(3):
            memory.append(partition=partition)
        assert {found.place.partition for found in reader.batches(wait=0)} == {0, 2}


def test_the_first_segment_may_be_replaced_by_a_larger_one_before_it_has_a_record(memory: MemoryLog) -> None:
    memory.append(1)
    memory.log.roll()  # leaves a small, empty newest segment
    with memory.reader(Edge.LATEST) as reader:
        assert numbers(reader) == []
        memory.append(1, records=1, size=100_000)
        assert numbers(reader) == [10]


def test_the_cursor_says_how_far_the_reader_is(memory: MemoryLog) -> None:
    memory.append(200)
    with memory.reader(Edge.EARLIEST, label="me") as reader:
        numbers(reader)
        (slot,) = memory.slots()
        assert (slot.label, slot.finished, slot.push_records) == ("me", 2000, 2000)
        assert slot.push_bytes == memory.log.size
        assert slot.pinned == memory.log.segments[-1].base_offset
        assert reader.lag == {memory.place: 0}
    assert memory.slots() == []


def test_a_gap_in_the_offsets_is_stepped_over_and_counts_no_records(memory: MemoryLog) -> None:
    memory.append()
    memory.log.skip_to(5000)
    memory.append()
    with memory.reader(3) as reader:
        assert numbers(reader) == [*range(3, 10), *range(5000, 5010)]
        assert memory.slots()[0].push_records == 17


# -- S2, S3, S7: memory that is taken back --------------------------------------------------------------


def test_s2_a_pinned_segment_is_unlinked_and_reads_on(memory: MemoryLog) -> None:
    memory.append(200)
    with memory.reader(Edge.EARLIEST) as reader:
        batches = reader.batches(wait=0)
        first = next(batches)
        before = bytes(first.data)
        (segment,) = memory.evict()
        memory.collect(memory.pins())
        assert memory.pool.use.detached == 32 * 1024
        memory.append(200)  # would overwrite it, were it free
        assert bytes(first.data) == before
        count = sum(
            1 for _ in itertools.takewhile(lambda found: found.next_offset < segment.next_offset, batches)
        )
        assert count > 10
        assert reader.positions == {memory.place: segment.next_offset}
    memory.collect(memory.pins())
    assert memory.pool.use.detached == 0


def test_s2_an_unpinned_segment_is_recycled_and_a_reader_that_comes_back_notices(memory: MemoryLog) -> None:
    memory.append(200)
    with memory.reader(Edge.EARLIEST) as reader:
        next(iter(reader.batches(copy=True)))
        memory.evict()
        memory.collect(set())  # as if the pin had not been seen
        assert memory.pool.use.free == 32 * 1024
        memory.append(100)
        with pytest.raises(NotInMemory) as caught:
            list(reader.batches(wait=0, copy=True))
        assert caught.value.offset == 10


def test_s2_what_was_lent_in_place_and_overwritten_does_not_count(memory: MemoryLog) -> None:
    memory.append(200)
    with memory.reader(Edge.EARLIEST) as reader:
        batches = reader.batches()
        next(batches)
        second = next(batches)
        before = bytes(second.data)
        memory.evict()
        memory.collect(set())
        memory.append(100)
        assert bytes(second.data) != before
        with pytest.raises(Overwritten) as caught:
            next(batches)
        assert caught.value.offset == second.start_offset == 10
        assert reader.positions == {memory.place: 10}


def test_s2_closing_tells_that_what_was_lent_was_overwritten(memory: MemoryLog) -> None:
    memory.append(200)
    reader = memory.reader(Edge.EARLIEST)
    batches = reader.batches()
    next(batches)
    memory.evict()
    memory.collect(set())
    memory.append(100)
    with pytest.raises(Overwritten):
        reader.close()
    assert memory.slots() == []


def test_s2_rows_are_checked_after_they_were_copied(
    memory: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that goes between the look at the header and the copy gives an exception, no record."""
    memory.append(200)
    with memory.reader(Edge.EARLIEST) as reader:
        taken = False

        def bytes_late(view: memoryview) -> bytes:
            nonlocal taken
            if not taken:
                taken = True
                memory.evict()
                memory.collect(set())
                memory.append(100)
            return bytes(view)

        monkeypatch.setattr("penstock.shm.follower.bytes", bytes_late, raising=False)
        with pytest.raises(NotInMemory) as caught:
            numbers(reader)
        assert caught.value.offset == 0


def test_s2_the_brokers_own_holds_are_never_overwritten(tmp_path: Path) -> None:
    memory = MemoryLog(tmp_path, detached=0)
    memory.append(200)
    segment = memory.log.segments[0]
    held = segment.memory
    assert held is not None
    held.holds += 1
    content = bytes(held.view[layout.SEGMENT_HEADER :])
    memory.evict()
    memory.collect(set())
    memory.append(200)
    assert bytes(held.view[layout.SEGMENT_HEADER :]) == content
    held.holds -= 1
    memory.collect(set())
    assert memory.pool.use.free >= 32 * 1024


def test_s3_memory_is_not_looked_at_again_before_a_pin_can_show(memory: MemoryLog) -> None:
    memory.append(200)
    (segment,) = memory.evict()
    memory.pool.collect(set())  # at once: too early
    assert memory.pool.use.retiring == 32 * 1024
    assert memory.pool.use.free == 0
    memory.collect({(memory.place.topic_id, 0, segment.base_offset)})  # the pin that came in time
    assert (memory.pool.use.retiring, memory.pool.use.free, memory.pool.use.detached) == (0, 0, 32 * 1024)


def test_s3_a_retiring_segment_can_not_be_pinned_any_more(memory: MemoryLog) -> None:
    memory.append(200)
    target = memory.log.segments[0].memory
    assert target is not None
    target.mark_retiring()  # and still has its name: the broker is between the two steps
    with memory.reader(0) as reader, pytest.raises(NotInMemory):
        next(reader.batches())
    assert memory.pins() == set()


@pytest.mark.parametrize("word", [layout.SEGMENT_TOPIC, layout.SEGMENT_PARTITION, layout.SEGMENT_BASE])
def test_s3_a_segment_with_another_owner_is_refused(memory: MemoryLog, word: int) -> None:
    memory.append(5)
    target = memory.log.segments[0].memory
    assert target is not None
    target.words[word // WORD] += 1
    with memory.reader(0) as reader, pytest.raises(NotInMemory):
        next(reader.batches())


def test_s7_past_the_budget_for_unlinked_memory_pinned_memory_is_taken(tmp_path: Path) -> None:
    memory = MemoryLog(tmp_path, detached=32 * 1024)
    memory.append(200)
    readers = [memory.reader(memory.log.segments[at].base_offset) for at in range(2)]
    lent = [next(iter(reader.batches())) for reader in readers]
    before = [bytes(found.data) for found in lent]
    memory.evict(2)
    memory.collect(memory.pins())
    assert memory.pool.use.detached == 32 * 1024
    assert memory.pool.taken_from_readers == 1
    memory.append(200)  # never waits for a reader
    assert bytes(lent[0].data) == before[0]
    assert bytes(lent[1].data) != before[1]
    readers[0].close()
    with pytest.raises(Overwritten):
        readers[1].close()


def test_evicted_offsets_must_be_pulled_and_reading_goes_on_behind_them(memory: MemoryLog) -> None:
    memory.append(200)
    last = memory.evict(2)[-1]
    with memory.reader(Edge.EARLIEST) as reader:
        with pytest.raises(NotInMemory, match="pull") as caught:
            numbers(reader)
        assert (caught.value.place, caught.value.offset) == (memory.place, 0)
        reader.seek(memory.place, last.next_offset)
        assert numbers(reader) == list(range(last.next_offset, 2000))


def test_deleted_records_are_not_read_though_they_are_still_in_memory(memory: MemoryLog) -> None:
    memory.append(20)
    memory.log.advance_log_start(55)
    with memory.reader(10) as reader, pytest.raises(NotInMemory, match="starts at 55"):
        numbers(reader)
    with memory.reader(Edge.EARLIEST) as reader:
        assert numbers(reader) == list(range(55, 200))


# -- S5: lengths that lie -------------------------------------------------------------------------------


def _patch(memory: MemoryLog, position: int, code: str, value: int) -> None:
    target = memory.log.segments[0].memory
    assert target is not None
    struct.pack_into(code, target.view, layout.SEGMENT_HEADER + position, value)


@pytest.mark.parametrize(
    ("field", "code", "value"),
    [
        (batch.BATCH_LENGTH, ">i", 1 << 30),
        (batch.BATCH_LENGTH, ">i", -1),
        (batch.BATCH_LENGTH, ">i", -12),
        (batch.BATCH_LENGTH, ">i", 0),
        (batch.BATCH_LENGTH, ">i", 48),
        (batch.LAST_OFFSET_DELTA, ">i", -10),
        (batch.LAST_OFFSET_DELTA, ">i", 1 << 30),
        (batch.BASE_OFFSET, ">q", -5),
        (batch.BASE_OFFSET, ">q", 1 << 60),
        (batch.MAGIC, ">b", 1),
    ],
)
@pytest.mark.parametrize("start", [0, 15, 25])
def test_s5_lying_lengths_end_in_an_exception(
    memory: MemoryLog, start: int, field: int, code: str, value: int
) -> None:
    memory.append(5)
    second = batch.read_place(memory.log.segments[0].bytes_between(0, 100), 0)[1]
    _patch(memory, second + field, code, value)
    with pytest.raises(CorruptLog), memory.reader(start) as reader:
        numbers(reader)


@pytest.mark.parametrize("count", [-1, 0, 9, 11, 1 << 30])
def test_s5_a_lying_count_ends_in_an_exception(memory: MemoryLog, count: int) -> None:
    memory.append()
    _patch(memory, batch.COUNT, ">i", count)
    with memory.reader(0) as reader, pytest.raises(CorruptLog):
        numbers(reader)


def test_s5_a_valid_crc_does_not_make_a_lying_record_safe(memory: MemoryLog) -> None:
    """A record inside the batch says that it is longer than the batch, and the CRC agrees."""
    encoded = bytearray(encode_batch([Record(0, 0, None, b"x" * 40)], base_offset=0))
    encoded[batch.HEADER_SIZE] = 0x7E
    batch.stamp_append_time(encoded, 0)  # makes the CRC anew
    memory.log.append(batch.check_produced(encoded, 1 << 20), encoded)
    with memory.reader(0) as reader, pytest.raises(CorruptLog, match="record ends at"):
        numbers(reader)


@pytest.mark.parametrize("written", [-1, 1 << 40])
def test_s5_a_lying_written_word_ends_in_an_exception(memory: MemoryLog, written: int) -> None:
    memory.append(5)
    target = memory.log.segments[0].memory
    assert target is not None
    target.words[layout.SEGMENT_WRITTEN // WORD] = written
    with pytest.raises(CorruptLog), memory.reader(0) as reader:
        numbers(reader)


def test_s5_a_batch_that_would_begin_at_the_very_end_of_the_mapping_is_none(memory: MemoryLog) -> None:
    memory.append(1, records=1)
    target = memory.log.segments[0].memory
    assert target is not None
    overhead = target.written - 100 + 2  # lengths of this size take a byte more, twice
    memory.log.roll()
    memory.append(1, records=1, size=target.capacity - overhead - 30)
    target = memory.log.segments[-1].memory
    assert target is not None
    assert 0 < target.capacity - target.written < batch.HEADER_SIZE
    with memory.reader(2) as reader:
        target.words[layout.SEGMENT_WRITTEN // WORD] = target.capacity
        memory.log.control.words[layout.PART_COMMIT // WORD] = 3
        with pytest.raises(CorruptLog):
            numbers(reader)


@pytest.mark.parametrize("next_base", [0, -7, 3])
def test_s5_segments_that_go_in_circles_end_in_an_exception(memory: MemoryLog, next_base: int) -> None:
    memory.append(200)
    target = memory.log.segments[0].memory
    assert target is not None
    with memory.reader(0) as reader:
        next(iter(reader.batches()))
        target.seal(next_base)
        with pytest.raises(CorruptLog):
            numbers(reader)


# -- S9: who serves this memory -------------------------------------------------------------------------


def test_s9_live_under_an_old_incarnation_is_refused(memory: MemoryLog) -> None:
    memory.append(5)
    NodeControl.create(memory.directory, 1, INCARNATION + 1)
    with pytest.raises(Fenced):
        memory.reader(Edge.EARLIEST)
    assert memory.slots() == []


def test_s9_a_restarted_broker_is_noticed_and_reading_goes_on(memory: MemoryLog) -> None:
    memory.append(5)
    with memory.reader(Edge.EARLIEST) as reader:
        assert len(numbers(reader)) == 50
        NodeControl.create(memory.directory, 1, INCARNATION + 1)
        memory.log.begin_epoch(2)
        memory.log.serve(INCARNATION + 1)
        memory.append(5)
        with pytest.raises(BrokerRestarted) as caught:
            numbers(reader)
        assert caught.value.offset == 50
        reader.reattach()
        assert numbers(reader) == list(range(50, 100))


def test_s9_a_heart_that_stands_still_is_a_broker_gone(memory: MemoryLog) -> None:
    memory.append(5)
    clock = Clock()
    with memory.reader(Edge.EARLIEST, clock=clock) as reader:
        clock.now += 60  # a slow consumer: what is committed is still read
        assert len(list(itertools.islice(reader.records(), 50))) == 50
        memory.node.beat()
        assert numbers(reader) == []
        clock.now += SILENCE
        assert numbers(reader) == []
        clock.now += 0.1
        with pytest.raises(BrokerGone, match="no heartbeat") as caught:
            numbers(reader)
        assert caught.value.offset == 50
        with pytest.raises(BrokerGone):
            reader.reattach()
        memory.node.beat()
        reader.reattach()
        memory.append()
        assert numbers(reader) == list(range(50, 60))


def test_s9_a_clean_stop_is_noticed_at_once(memory: MemoryLog) -> None:
    memory.append()
    with memory.reader(Edge.EARLIEST) as reader:
        numbers(reader)
        memory.node.retire()
        with pytest.raises(BrokerGone, match="stopped"):
            numbers(reader)
        with pytest.raises(BrokerGone):
            reader.reattach()


@pytest.mark.parametrize(
    ("state", "exception"),
    [(PartitionState.FENCED, Fenced), (PartitionState.SUSPECT, Fenced), (PartitionState.GONE, Gone)],
)
def test_s9_only_live_is_read(memory: MemoryLog, state: PartitionState, exception: type[Interrupted]) -> None:
    memory.append(5)
    with memory.reader(20) as reader:
        memory.log.control.state = state
        with pytest.raises(exception) as caught:
            numbers(reader)
        assert caught.value.offset == 20


def test_a_partition_that_is_not_there_and_a_broker_that_never_was(memory: MemoryLog, tmp_path: Path) -> None:
    with pytest.raises(Fenced):
        LogReader(memory.directory, {Place("t", b"x" * 16, 0): Edge.EARLIEST})
    with pytest.raises(BrokerGone):
        LogReader(tmp_path / "nowhere", {memory.place: Edge.EARLIEST})
    assert memory.slots() == []


def test_a_reader_can_not_write_the_log(memory: MemoryLog) -> None:
    memory.append()
    with memory.reader(0) as reader:
        found = next(iter(reader.batches()))
        assert isinstance(found.data, memoryview)
        with pytest.raises(TypeError):
            found.data[0] = 1
        assert isinstance(found.data.obj, mmap.mmap)
