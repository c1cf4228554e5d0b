"""Record batches inside: our encoder and decoder against each other, other clients' and broken bytes."""

from __future__ import annotations

import gzip
import io
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import confluent_kafka
import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.fetch import v4 as fetch_v4
from kio.schema.produce import v3 as produce_v3
from kio.serial import entity_reader, entity_writer

from penstock.wire.batch import ATTRIBUTES, COUNT, CRC, HEADER_SIZE, LAST_OFFSET_DELTA, read_header
from penstock.wire.records import (
    Compression,
    CorruptRecords,
    Record,
    compress,
    decode_records,
    decompress,
    encode_batch,
)

ALL = list(Compression)
NOW = 1_700_000_000_000

# kio's field types are NewTypes, which plain numbers in a test would have to be wrapped in one by one.
fetch_request: Any = fetch_v4.request
produce_request: Any = produce_v3.request

some_bytes = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=20), some_bytes), max_size=4).map(tuple)


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, list[Record]]:
    base = draw(st.integers(0, 2**62))
    gaps = draw(st.lists(st.integers(0, 100_000), min_size=1, max_size=20))
    offset = base - 1
    records = []
    for gap in gaps:
        offset += 1 + gap
        moment = draw(st.integers(-1, 2**60))
        records.append(Record(offset, moment, draw(some_bytes), draw(some_bytes), draw(headers)))
    return base, records


def some_records(count: int = 50) -> list[Record]:
    return [
        Record(
            i, NOW + i % 7, None if i % 5 == 0 else b"key-%d" % i, b"value %d " % i * (i % 90), (("h", b"x"),)
        )
        for i in range(count)
    ]


def reseal(batch: bytearray) -> bytes:
    """Make the CRC true again after tampering, so that the check behind it is what is tested."""
    struct.pack_into(">I", batch, CRC, crc32c(memoryview(batch)[ATTRIBUTES:]))
    return bytes(batch)


@given(batches(), st.sampled_from(ALL))
def test_what_is_encoded_is_decoded(batch: tuple[int, list[Record]], compression: Compression) -> None:
    base, records = batch
    encoded = encode_batch(records, base_offset=base, compression=compression)
    assert decode_records(encoded) == records
    header = read_header(encoded)
    assert header.base_offset == base
    assert header.last_offset == records[-1].offset
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert header.record_count == len(records)
    assert header.compression == compression


def test_the_header_carries_what_was_asked_for() -> None:
    encoded = encode_batch(
        some_records(3),
        leader_epoch=4,
        producer_id=5,
        producer_epoch=6,
        base_sequence=7,
        transactional=True,
        control=True,
    )
    header = read_header(encoded)
    assert (header.leader_epoch, header.producer_id, header.producer_epoch, header.base_sequence) == (
        4,
        5,
        6,
        7,
    )
    assert header.is_transactional
    assert header.is_control
    assert header.size == len(encoded)


def test_a_compacted_batch_keeps_the_offsets_it_covered() -> None:
    kept = [Record(103, NOW, b"k", b"v")]
    encoded = encode_batch(kept, base_offset=100, last_offset_delta=9)
    assert read_header(encoded).last_offset == 109
    assert decode_records(encoded) == kept


@pytest.mark.parametrize("compression", ALL)
def test_a_batch_may_have_lost_every_record(compression: Compression) -> None:
    encoded = encode_batch([], base_offset=100, last_offset_delta=9, compression=compression)
    assert len(encoded) == HEADER_SIZE
    assert read_header(encoded).next_offset == 110
    assert decode_records(encoded) == []


@pytest.mark.parametrize(
    ("records", "base", "last"),
    [
        ([], 0, None),
        ([Record(5, 0, None, None)], 6, None),
        ([Record(5, 0, None, None), Record(5, 0, None, None)], 5, None),
        ([Record(5, 0, None, None)], 0, 4),
        ([Record(2**31, 0, None, None)], 0, None),
    ],
)
def test_offsets_that_make_no_batch_are_refused(records: list[Record], base: int, last: int | None) -> None:
    with pytest.raises(ValueError, match="offset"):
        encode_batch(records, base_offset=base, last_offset_delta=last)


def test_log_append_time_is_every_records_time() -> None:
    encoded = encode_batch(some_records(), log_append_time=True)
    times = {record.timestamp for record in decode_records(encoded)}
    assert times == {NOW + 6}


@given(batches())
def test_a_memoryview_decodes_like_bytes(batch: tuple[int, list[Record]]) -> None:
    base, records = batch
    encoded = encode_batch(records, base_offset=base)
    assert decode_records(memoryview(bytearray(encoded))) == records


# -- other implementations -----


@pytest.mark.parametrize("compression", ALL)
def test_aiokafka_reads_what_we_write(compression: Compression) -> None:
    records = some_records()
    encoded = encode_batch(records, compression=compression)
    batch = DefaultRecordBatch(bytearray(encoded))
    assert batch.validate_crc()
    read = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert read == records


@pytest.mark.parametrize("compression", ALL)
def test_we_read_what_aiokafka_writes(compression: Compression) -> None:
    records = some_records()
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for r in records:
        builder.append(r.offset, r.timestamp, r.key, r.value, list(r.headers))
    assert decode_records(builder.build()) == records


class MockBroker:
    """librdkafka's in-process broker, spoken to with raw bytes on one side and confluent on the other."""

    def __init__(self) -> None:
        self.producer = confluent_kafka.Producer({"test.mock.num.brokers": 1})
        (broker,) = self.producer.list_topics(timeout=10).brokers.values()
        self.address = f"{broker.host}:{broker.port}"
        self.socket = socket.create_connection((broker.host, broker.port), timeout=10)

    def call(self, request: Any, response: Any) -> Any:
        out = io.BytesIO()
        header = request.__header_schema__(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=1,
            client_id="test",
        )
        entity_writer(type(header))(out, header)
        entity_writer(type(request))(out, request)
        self.socket.sendall(struct.pack(">i", len(out.getvalue())) + out.getvalue())
        with self.socket.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            payload = stream.read(size)
        answer, _ = entity_reader(response)(payload, 4)
        return answer

    def produce(self, topic: str, batch: bytes) -> None:
        request = produce_request.ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout=timedelta(seconds=5),
            topic_data=(
                produce_request.TopicProduceData(
                    name=topic,
                    partition_data=(produce_request.PartitionProduceData(index=0, records=batch),),
                ),
            ),
        )
        answer = self.call(request, produce_v3.response.ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none

    def fetch(self, topic: str, offset: int) -> bytes:
        """The next batch only, if the producer wrote several."""
        request = fetch_request.FetchRequest(
            replica_id=-1,
            max_wait=timedelta(seconds=1),
            min_bytes=1,
            topics=(
                fetch_request.FetchTopic(
                    topic=topic,
                    partitions=(
                        fetch_request.FetchPartition(
                            partition=0, fetch_offset=offset, partition_max_bytes=1 << 24
                        ),
                    ),
                ),
            ),
        )
        records: bytes = (
            self.call(request, fetch_v4.response.FetchResponse).responses[0].partitions[0].records
        )
        return records


@contextmanager
def mock_broker() -> Iterator[MockBroker]:
    broker = MockBroker()
    try:
        yield broker
    finally:
        broker.socket.close()
        broker.producer.purge()


@pytest.mark.parametrize("compression", ALL)
def test_confluent_reads_what_we_write(compression: Compression) -> None:
    records = some_records()
    with mock_broker() as broker:
        broker.producer.list_topics("t", timeout=10)
        broker.produce("t", encode_batch(records, compression=compression))
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.address, "group.id": "g", "check.crcs": True}
        )
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        read: list[Record] = []
        while len(read) < len(records):
            message: Any = consumer.poll(10)
            assert message is not None
            assert message.error() is None
            named = tuple(message.headers() or ())
            read.append(
                Record(message.offset(), message.timestamp()[1], message.key(), message.value(), named)
            )
        consumer.close()
    assert read == records


@pytest.mark.parametrize("compression", ALL)
def test_we_read_what_confluent_writes(compression: Compression) -> None:
    with mock_broker() as broker:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.address,
                "compression.type": compression.name.lower(),
                "linger.ms": 100,
            }
        )
        for i in range(200):
            producer.produce(
                "t", b"value %d " % i * 20, b"key", partition=0, timestamp=NOW + i, headers={"h": b"x"}
            )
        assert producer.flush(10) == 0
        read: list[Record] = []
        while len(read) < 200 and (stored := broker.fetch("t", len(read))):
            while stored:
                size = read_header(stored).size
                assert read_header(stored).compression == compression
                read += decode_records(stored[:size])
                stored = stored[size:]
    assert read == [Record(i, NOW + i, b"key", b"value %d " % i * 20, (("h", b"x"),)) for i in range(200)]


def test_raw_snappy_and_gzip_members_in_a_row_are_read() -> None:
    data = bytes(range(256)) * 400
    assert decompress(bytes(cramjam.snappy.compress_raw(data)), Compression.SNAPPY) == data
    assert decompress(gzip.compress(data) + gzip.compress(b"more"), Compression.GZIP) == data + b"more"


# -- broken bytes -----


def decodes_or_is_corrupt(batch: bytes) -> None:
    try:
        records = decode_records(batch, max_size=1 << 20)
    except CorruptRecords:
        return
    # What was accepted can be written again: compaction relies on it.
    header = read_header(batch)
    encode_batch(records, base_offset=header.base_offset, last_offset_delta=header.last_offset_delta)


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("sealed", [True, False])
def test_mutated_batches_are_corrupt_or_fine_and_nothing_else(compression: Compression, sealed: bool) -> None:
    dice = random.Random(compression)
    good = encode_batch(some_records(20), compression=compression)
    for _ in range(1500):
        batch = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            batch[dice.randrange(LAST_OFFSET_DELTA if sealed else 0, len(batch))] = dice.choice(
                (0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256))
            )
        decodes_or_is_corrupt(reseal(batch) if sealed else bytes(batch))


@given(st.binary(max_size=400), st.sampled_from(ALL), st.integers(-1, 40))
def test_any_payload_behind_a_true_crc_is_corrupt_or_fine(
    payload: bytes, compression: Compression, count: int
) -> None:
    batch = bytearray(encode_batch(some_records(1), compression=compression)[:HEADER_SIZE] + payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, COUNT, count)
    decodes_or_is_corrupt(reseal(batch))


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_at_all_are_corrupt(noise: bytes) -> None:
    with pytest.raises(CorruptRecords):
        decode_records(noise)


@pytest.mark.parametrize("cut", [0, 1, HEADER_SIZE - 1, HEADER_SIZE, -1])
def test_a_cut_batch_is_corrupt(cut: int) -> None:
    with pytest.raises(CorruptRecords):
        decode_records(encode_batch(some_records())[:cut])


def test_a_flipped_bit_is_corrupt() -> None:
    batch = bytearray(encode_batch(some_records()))
    batch[-1] ^= 1
    with pytest.raises(CorruptRecords, match="CRC"):
        decode_records(batch)


@pytest.mark.parametrize("count", [-1, 0, 49, 51, 2**31 - 1])
def test_a_count_that_lies_is_corrupt(count: int) -> None:
    batch = bytearray(encode_batch(some_records(50)))
    struct.pack_into(">i", batch, COUNT, count)
    with pytest.raises(CorruptRecords):
        decode_records(reseal(batch))


@pytest.mark.parametrize(
    "compression", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
)
def test_a_decompression_bomb_stops_at_the_limit(compression: Compression) -> None:
    bomb = compress(bytes(3 << 20), compression)
    assert len(bomb) < 1 << 20
    with pytest.raises(CorruptRecords):
        decompress(bomb, compression, limit=(3 << 20) - 1)
    assert decompress(bomb, compression, limit=3 << 20) == bytes(3 << 20)


def test_an_unknown_codec_is_corrupt() -> None:
    batch = bytearray(encode_batch(some_records()))
    batch[ATTRIBUTES + 1] |= 5
    with pytest.raises(CorruptRecords, match="compression"):
        decode_records(reseal(batch))
