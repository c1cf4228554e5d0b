"""The reader's rules for shared memory (safety.md, S1 to S9), against a broker that lays it out by hand and
can therefore do what a real one does once a year."""

from __future__ import annotations

import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tiny_broker import TinyBroker, batch

from penstock.shm import layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def tiny() -> Iterator[TinyBroker]:
    root = Path(tempfile.mkdtemp(prefix="penstock-tiny-", dir="/dev/shm"))
    broker = TinyBroker(root, "tiny")
    yield broker
    broker.close()
    shutil.rmtree(root, ignore_errors=True)


def read(spark: SparkSession, broker: TinyBroker, mode: str = "auto", **more: str) -> DataFrame:
    options = {"penstock.bootstrap.servers": broker.servers, "subscribe": broker.topic, "mode": mode, **more}
    return spark.read.format("penstock").options(**options).load()


def values(frame: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in frame.orderBy("offset").select("value").collect()]


def fill(broker: TinyBroker, batches: int, records: int = 10, codec: str = "none") -> list[bytes]:
    partition, expected = broker.partitions[0], []
    for _ in range(batches):
        wanted = [b"value %d" % (partition.end + i) for i in range(records)]
        partition.append(batch(partition.end, wanted, codec=codec))
        expected += wanted
    return expected


def read_slowly(spark: SparkSession, broker: TinyBroker) -> None:
    """By push, two milliseconds for each row, inside the executor."""
    nap = "java_method('java.lang.Thread', 'sleep', 2L) as nap"
    read(spark, broker, "push").selectExpr("offset", nap).write.format("noop").mode("overwrite").save()


def test_push_reads_what_was_written_and_fetches_nothing(spark: SparkSession, tiny: TinyBroker) -> None:
    expected = fill(tiny, 20)
    tiny.partitions[0].roll()
    expected += fill(tiny, 20, codec="zstd")
    assert values(read(spark, tiny, "push")) == expected
    assert tiny.fetches == 0


def test_a_count_decodes_no_record(spark: SparkSession, tiny: TinyBroker) -> None:
    """The records are garbage, only the headers are true: a count must not notice. Nor do the bounds."""
    good = batch(0, [b"x" * 100] * 50)
    tiny.partitions[0].append(good[:61] + b"\xff" * (len(good) - 61))
    rows = read(spark, tiny, "push")
    assert rows.count() == 50
    assert tuple(rows.selectExpr("min(offset)", "max(offset)", "max(partition)").first() or ()) == (0, 49, 0)
    # Counted by an operator of Spark's over the columns, as in a stream.
    assert rows.repartition(1).selectExpr("1 as one").groupBy("one").count().collect() == [(1, 50)]


@pytest.mark.parametrize(
    ("where", "stamped", "expected"),
    [
        ("timestamp >= timestamp_millis({time} + 1000)", False, 50),
        ("timestamp = timestamp_millis({time} + 1000)", False, 1),
        ("timestamp < timestamp_millis({time})", True, 0),
    ],
)
def test_a_batch_whose_header_rules_it_out_is_not_decoded(
    spark: SparkSession, tiny: TinyBroker, where: str, stamped: bool, expected: int
) -> None:
    """Its records are garbage. Of the least time a header says nothing, unless the broker stamped it."""
    time = 1_700_000_000_000
    early = bytearray(batch(0, [b"x" * 100] * 50, timestamp=time))
    if stamped:
        early[22] |= 0x08
    tiny.partitions[0].append(bytes(early[:61]) + b"\xff" * (len(early) - 61))
    if not stamped:
        tiny.partitions[0].append(batch(50, [b"y"] * 50, timestamp=time + 1000))
    rows = read(spark, tiny, "push").where(where.format(time=time)).select("value", "timestamp")
    assert len(rows.collect()) == expected


@pytest.mark.parametrize("mode", ["push", "pull"])
@pytest.mark.parametrize(
    "lie",
    [
        lambda raw: raw[:61] + b"\xfe\xff\xff\x7f" + raw[65:],  # the first record's length
        lambda raw: raw[:61] + b"\xff" * (len(raw) - 61),  # numbers that never end
        lambda raw: raw[:57] + struct.pack(">i", 1_000_000) + raw[61:],  # more records than bytes
        lambda raw: raw[:66] + b"\xfe\xff\x7f" + raw[69:],  # a value's length
    ],
    ids=["record", "numbers", "count", "value"],
)
def test_lying_lengths_fail_the_task_and_not_the_executor(
    spark: SparkSession, tiny: TinyBroker, mode: str, lie: Any
) -> None:
    tiny.partitions[0].append(lie(batch(0, [b"x" * 20] * 10)))
    with pytest.raises(Exception, match=r"CorruptBatch|record"):
        read(spark, tiny, mode).select("key", "value", "timestamp").collect()
    assert spark.range(3).count() == 3  # alive


def test_control_batches_and_gaps_are_skipped(spark: SparkSession, tiny: TinyBroker) -> None:
    partition = tiny.partitions[0]
    partition.append(batch(0, [b"a", b"b"]))
    control = bytearray(batch(2, [b"commit"]))
    control[22] |= 0x20
    partition.append(bytes(control))
    partition.append(batch(1000, [b"c"]))  # a broker that lost its memory goes on above what it had shown
    for mode in ("push", "pull"):
        rows = read(spark, tiny, mode).orderBy("offset").collect()
        assert [(row.offset, bytes(row.value)) for row in rows] == [(0, b"a"), (1, b"b"), (1000, b"c")]
        figures = read(spark, tiny, mode).selectExpr("count(*)", "min(offset)", "max(offset)").first()
        assert tuple(figures or ()) == (3, 0, 1000)


def test_a_range_that_ends_in_a_gap_comes_to_an_end(spark: SparkSession, tiny: TinyBroker) -> None:
    partition = tiny.partitions[0]
    partition.append(batch(0, [b"a"]))
    partition.end = 500
    partition.control[layout.PART_COMMIT] = 500
    assert values(read(spark, tiny, "push")) == [b"a"]
    assert values(read(spark, tiny, "pull")) == [b"a"]


def test_compacted_batches_keep_their_offsets(spark: SparkSession, tiny: TinyBroker) -> None:
    """A batch that says 10 offsets and has 3 records; a range that begins inside it."""
    raw = bytearray(batch(0, [b"0", b"1", b"2"]))
    struct.pack_into(">i", raw, 23, 9)
    tiny.partitions[0].append(bytes(raw))
    tiny.partitions[0].append(batch(10, [b"10"]))
    for mode in ("push", "pull"):
        frame = read(spark, tiny, mode, startingOffsets='{"tiny":{"0":1}}')
        assert [row.offset for row in frame.orderBy("offset").collect()] == [1, 2, 10]
        assert frame.count() == 3


def test_what_memory_no_longer_holds_is_pulled_and_the_rest_pushed(
    spark: SparkSession, tiny: TinyBroker
) -> None:
    expected = fill(tiny, 10)
    tiny.partitions[0].roll()
    expected += fill(tiny, 10)
    tiny.partitions[0].evict(0)
    fetched = tiny.fetches
    assert values(read(spark, tiny, "auto")) == expected
    assert tiny.fetches > fetched
    with pytest.raises(Exception, match=r"no longer in memory.*mode"):
        read(spark, tiny, "push").collect()


def test_memory_that_another_process_serves_is_not_read(spark: SparkSession, tiny: TinyBroker) -> None:
    """part.ctl says LIVE for ever after a kill -9: only node.ctl's incarnation makes it true (S9)."""
    expected = fill(tiny, 5)
    tiny.partitions[0].control[layout.PART_INCARNATION] = 1
    assert values(read(spark, tiny, "auto")) == expected
    assert tiny.fetches > 0


def test_memory_taken_under_a_reader_fails_its_task(spark: SparkSession, tiny: TinyBroker) -> None:
    """The generation changes while rows are leaving (S2): the task must not end well with them."""
    fill(tiny, 2, records=1000)
    segment = tiny.partitions[0].segments[0]

    def take() -> None:
        while 0 not in pins(tiny):
            time.sleep(0.005)
        segment[layout.SEGMENT_GENERATION] += 2

    thief = threading.Thread(target=take)
    thief.start()
    with pytest.raises(Exception, match=r"MemoryTaken|was reused"):
        read_slowly(spark, tiny)
    thief.join()


def slots(broker: TinyBroker) -> list[tuple[int, int]]:
    """State and pin of every slot in every cursor file, as the broker sees them."""
    found = []
    for file in (broker.directory / layout.CURSOR_DIR).glob("*" + layout.CURSOR_SUFFIX):
        words = memoryview(file.read_bytes()).cast("q")
        for slot in range(words[layout.CURSOR_SLOTS // layout.WORD]):
            at = layout.CURSOR_HEADER + slot * layout.CURSOR_SLOT_SIZE
            state, pin = at + layout.SLOT_STATE, at + layout.SLOT_PINNED
            found.append((words[state // layout.WORD], words[pin // layout.WORD]))
    return found


def pins(broker: TinyBroker) -> set[int]:
    return {pin for state, pin in slots(broker) if state == layout.SlotState.PUSH}


def test_a_reader_pins_what_it_reads_and_lets_go(spark: SparkSession, tiny: TinyBroker) -> None:
    fill(tiny, 2, records=500)
    seen: set[int] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            seen.update(pins(tiny))

    thread = threading.Thread(target=watch)
    thread.start()
    read_slowly(spark, tiny)
    done.set()
    thread.join()
    assert 0 in seen
    assert {state for state, _pin in slots(tiny)} == {layout.SlotState.FREE}


def test_another_broker_than_penstock_is_pulled_from(spark: SparkSession, tiny: TinyBroker) -> None:
    tiny.offers_push = False
    expected = fill(tiny, 5)
    assert values(read(spark, tiny, "auto")) == expected
    assert tiny.fetches > 0


def test_lost_records_are_an_error_or_skipped(spark: SparkSession, tiny: TinyBroker) -> None:
    expected = fill(tiny, 10)
    partition = tiny.partitions[0]
    partition.log_start = 40
    partition.control[layout.PART_LOG_START] = 40
    start = {"startingOffsets": '{"tiny":{"0":5}}'}
    with pytest.raises(Exception, match="failOnDataLoss"):
        read(spark, tiny, "auto", **start).collect()
    assert values(read(spark, tiny, "auto", failOnDataLoss="false", **start)) == expected[40:]
