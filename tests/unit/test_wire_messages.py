"""The hand-written encoders and decoders agree with kio's, for every version they serve."""

from __future__ import annotations

import io
import uuid
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_writer
from kio.serial._introspect import EntityField, EntityTupleField, PrimitiveTupleField, classify_field
from kio.serial._introspect import is_optional as optional_field

from penstock.wire import fetch, messages, produce, varint
from penstock.wire.apis import SUPPORTED, ApiKey
from penstock.wire.errors import ErrorCode, MalformedRequest
from penstock.wire.fetch import FetchedPartition, FetchedTopic
from penstock.wire.head import RequestHead, read_head
from penstock.wire.messages import entity_builder
from penstock.wire.produce import TopicAnswer
from rawclient import read_response, request_bytes
from samples import EVERY_VERSION, sample

I8 = st.integers(-(1 << 7), (1 << 7) - 1)
I16 = st.integers(-(1 << 15), (1 << 15) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.text(max_size=40)
IDS = st.uuids(allow_nil=False)
ERRORS = st.sampled_from(list(ErrorCode))
QUICK = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])

PRODUCE_VERSIONS = range(SUPPORTED[ApiKey.PRODUCE].low, SUPPORTED[ApiKey.PRODUCE].high + 1)
FETCH_VERSIONS = range(SUPPORTED[ApiKey.FETCH].low, SUPPORTED[ApiKey.FETCH].high + 1)

produce_partitions = st.lists(
    st.fixed_dictionaries({"index": I32, "records": st.none() | st.binary(max_size=300)}), max_size=4
)
produce_trees = st.fixed_dictionaries(
    {
        "transactional_id": st.none() | NAMES,
        "acks": I16,
        "timeout": I32,
        "topic_data": st.lists(
            st.fixed_dictionaries({"name": NAMES, "topic_id": IDS, "partition_data": produce_partitions}),
            max_size=4,
        ),
    }
)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@QUICK
@given(tree=produce_trees)
def test_produce_requests_are_read_as_kio_writes_them(version: int, tree: dict[str, Any]) -> None:
    body = memoryview(request_bytes(0, version, tree))[4:]
    request = produce.read_produce(read_head(body), body)
    assert (request.client_id, request.transactional_id) == ("raw", tree["transactional_id"])
    assert (request.acks, request.timeout_ms) == (tree["acks"], tree["timeout"])
    assert len(request.topics) == len(tree["topic_data"])
    for topic, wanted in zip(request.topics, tree["topic_data"], strict=True):
        if version >= produce.TOPIC_IDS:
            assert topic.topic_id == wanted["topic_id"].bytes
        else:
            assert topic.name == wanted["name"]
        found = [(index, None if records is None else bytes(records)) for index, records in topic.partitions]
        assert found == [(p["index"], p["records"]) for p in wanted["partition_data"]]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@QUICK
@given(tree=produce_trees, data=st.data())
def test_a_damaged_produce_request_is_read_or_malformed_and_nothing_else(
    version: int, tree: dict[str, Any], data: st.DataObject
) -> None:
    body = bytearray(request_bytes(0, version, tree)[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(8, len(body) - 1))] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(8, len(body))) :]
    view = memoryview(body)
    try:
        request = produce.read_produce(read_head(view), view)
    except MalformedRequest:
        return
    given_out = sum(len(records or b"") for topic in request.topics for _, records in topic.partitions)
    assert given_out <= len(body)


answers = st.tuples(I32, ERRORS.map(int), I64, st.integers(-1, 1 << 42), I64, st.none() | st.text(min_size=1))
topic_answers = st.lists(
    st.builds(TopicAnswer, NAMES, IDS.map(lambda topic_id: topic_id.bytes), st.lists(answers, max_size=4)),
    max_size=4,
)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@QUICK
@given(topics=topic_answers, throttle=st.integers(0, 1 << 30))
def test_produce_responses_are_what_kio_reads(version: int, topics: list[TopicAnswer], throttle: int) -> None:
    written = produce.write_produce(RequestHead(0, version, 77), topics, throttle)
    correlation, response = read_response(0, version, written[4:])
    assert (correlation, int.from_bytes(written[:4], "big")) == (77, len(written) - 4)
    assert response.throttle_time == timedelta(milliseconds=throttle)
    assert len(response.responses) == len(topics)
    for found, topic in zip(response.responses, topics, strict=True):
        if version >= produce.TOPIC_IDS:
            assert found.topic_id.bytes == topic.topic_id
        else:
            assert found.name == topic.name
        assert len(found.partition_responses) == len(topic.partitions)
        for partition, answer in zip(found.partition_responses, topic.partitions, strict=True):
            index, error, base_offset, _, log_start, message = answer
            assert (partition.index, int(partition.error_code)) == (index, error)
            assert partition.base_offset == base_offset
            if version >= 5:
                assert partition.log_start_offset == log_start
            if version >= 8:
                assert partition.error_message == message
                assert partition.record_errors == ()


fetched_topics = st.lists(
    st.builds(
        FetchedTopic,
        NAMES,
        IDS.map(lambda topic_id: topic_id.bytes),
        st.lists(
            st.builds(FetchedPartition, I32, ERRORS.map(int), I64, I64, st.binary(max_size=200)), max_size=4
        ),
    ),
    max_size=4,
)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@QUICK
@given(topics=fetched_topics, error=ERRORS)
def test_fetch_responses_are_what_kio_reads(
    version: int, topics: list[FetchedTopic], error: ErrorCode
) -> None:
    written = b"".join(fetch.write_fetch(RequestHead(1, version, 77), topics, int(error)))
    correlation, response = read_response(1, version, written[4:])
    assert (correlation, int.from_bytes(written[:4], "big")) == (77, len(written) - 4)
    if version >= 7:
        assert (response.error_code, response.session_id) == (error, 0)
    assert len(response.responses) == len(topics)
    for found, topic in zip(response.responses, topics, strict=True):
        if version >= fetch.TOPIC_IDS:
            assert found.topic_id.bytes == topic.topic_id
        else:
            assert found.topic == topic.name
        for partition, wanted in zip(found.partitions, topic.partitions, strict=True):
            assert (partition.partition_index, int(partition.error_code)) == wanted[:2]
            assert partition.high_watermark == partition.last_stable_offset == wanted.high_watermark
            assert not partition.aborted_transactions
            assert (partition.records or b"") == wanted.records
            if version >= 5:
                assert partition.log_start_offset == wanted.log_start
            if version >= 11:
                assert partition.preferred_read_replica == -1


def test_the_batches_in_a_fetch_response_are_not_copied() -> None:
    memory = memoryview(bytearray(1000))
    topics = [FetchedTopic("t", b"", [FetchedPartition(0, 0, 5, 0, memory[10:500])])]
    buffers = fetch.write_fetch(RequestHead(1, 11, 1), topics)
    assert any(isinstance(buffer, memoryview) and buffer.obj is memory.obj for buffer in buffers)


PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "int8": I8,
    "int16": I16,
    "int32": I32,
    "int64": I64,
    "uint16": st.integers(0, 65535),
    "bool": st.booleans(),
    "string": NAMES,
    "bytes": st.binary(max_size=50),
    "records": st.binary(max_size=50),
    "uuid": IDS,
    "float64": st.floats(allow_nan=False),
    "error_code": ERRORS,
    "timedelta_i32": st.integers(0, (1 << 31) - 1),
    "timedelta_i64": st.integers(0, 1 << 40),
    "datetime_i64": st.integers(0, 1 << 42),
}


@cache
def trees_of(entity: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Trees with some or all of an entity's fields, and one that no entity has."""
    wanted: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields(entity):
        kind = classify_field(field)
        values: st.SearchStrategy[Any]
        if isinstance(kind, EntityTupleField):
            values = st.lists(trees_of(kind.type_), max_size=2)
        elif isinstance(kind, EntityField):
            values = trees_of(kind.type_)
        elif isinstance(kind, PrimitiveTupleField):
            values = st.lists(PRIMITIVES[field.metadata["kafka_type"]], max_size=2)
        else:
            values = PRIMITIVES[field.metadata["kafka_type"]]
        wanted[field.name] = values | st.none() if optional_field(field) else values
    return st.fixed_dictionaries({"field_of_another_version": st.just(1)}, optional=wanted)


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION, ids=lambda value: getattr(value, "name", value))
@settings(max_examples=4, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_responses_of_every_api_and_version_come_back_as_they_were_built(
    key: ApiKey, version: int, data: st.DataObject
) -> None:
    schema = load_response_schema(int(key), version)
    tree = data.draw(trees_of(schema))
    written = messages.write_response(int(key), version, 99, tree)
    correlation, response = read_response(int(key), version, written[4:])
    assert (correlation, int.from_bytes(written[:4], "big")) == (99, len(written) - 4)
    assert response == entity_builder(schema)(tree)


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION, ids=lambda value: getattr(value, "name", value))
def test_requests_of_every_api_and_version_are_read(key: ApiKey, version: int) -> None:
    tree = sample(key, "topic", uuid.UUID(int=5))
    body = memoryview(request_bytes(int(key), version, tree, correlation=3))[4:]
    head = read_head(body)
    assert (head.api_key, head.api_version, head.correlation_id) == (int(key), version, 3)
    request = messages.read_request(head, body)
    assert request.client_id == "raw"
    schema = load_request_schema(int(key), version)
    again = io.BytesIO()
    entity_writer(schema)(again, request.body)
    assert bytes(body).endswith(again.getvalue())


def produced(request: produce.ProduceRequest) -> list[Any]:
    """All that it says, to be compared."""
    topics = [(topic.name, topic.topic_id, topic.partitions) for topic in request.topics]
    return [request.client_id, request.transactional_id, request.acks, request.timeout_ms, topics]


UNKNOWN_TAG = b"\x01\x63\x03abc"
"""A section with one tag, number 99, of three bytes."""


@pytest.mark.parametrize(
    ("key", "version"),
    [(key, version) for key, version in EVERY_VERSION if load_request_schema(key, version).__flexible__],
    ids=lambda value: getattr(value, "name", value),
)
def test_tags_that_nobody_knows_yet_are_skipped(key: ApiKey, version: int) -> None:
    body = body_of(key, version)
    assert (body[13], body[-1]) == (0, 0)  # the header's section and the body's last
    newer = body[:13] + UNKNOWN_TAG + body[14:-1] + UNKNOWN_TAG
    view = memoryview(newer)
    head = read_head(view)
    if key is ApiKey.PRODUCE:
        found, wanted = produce.read_produce(head, view), produce.read_produce(head, memoryview(body))
        assert produced(found) == produced(wanted)
    assert messages.read_request(head, view) == messages.read_request(head, memoryview(body))


def test_tags_that_nobody_knows_yet_are_skipped_deep_inside() -> None:
    plain = request_bytes(3, 12, {"topics": [{"name": name, "topic_id": None} for name in ("aa", "bb")]})[4:]
    newer = plain
    for name in (b"aa", b"bb"):
        newer = newer.replace(b"\x03" + name + b"\0", b"\x03" + name + UNKNOWN_TAG)
    assert len(newer) == len(plain) + 2 * (len(UNKNOWN_TAG) - 1)
    view = memoryview(newer)
    assert messages.read_request(read_head(view), view).body.topics[1].name == "bb"


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION, ids=lambda value: getattr(value, "name", value))
def test_a_count_of_billions_is_malformed_and_costs_nothing(key: ApiKey, version: int) -> None:
    """A decoder that made room for what an array's count promises would be killed here."""
    body = body_of(key, version)
    for position in range(10, len(body)):
        for lie in (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\x00\xff\xff\xff"):
            view = memoryview(body[:position] + lie + body[position + len(lie) :])
            with suppress(MalformedRequest):
                messages.read_request(read_head(view), view)


@cache
def body_of(key: ApiKey, version: int) -> bytes:
    return request_bytes(int(key), version, sample(key, "topic", uuid.UUID(int=5)))[4:]


@settings(max_examples=1000, deadline=None)
@given(
    api=st.sampled_from(EVERY_VERSION),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
    length=st.just(1.0) | st.floats(0, 1),
)
def test_a_damaged_request_is_read_or_malformed_and_nothing_else(
    api: tuple[ApiKey, int], changes: list[tuple[float, int]], length: float
) -> None:
    body = bytearray(body_of(*api))
    for place, byte in changes:
        body[8 + int(place * (len(body) - 9))] = byte
    del body[8 + int(length * (len(body) - 8)) :]
    view = memoryview(body)
    with suppress(MalformedRequest):
        messages.read_request(read_head(view), view)


@given(value=st.integers(0, (1 << 32) - 1))
def test_unsigned_varints_come_back(value: int) -> None:
    out = bytearray()
    varint.put_uvarint(out, value)
    assert varint.read_uvarint(memoryview(out), 0) == (value, len(out))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80" * 4, b"\xff" * 10, b"\x80" * 5 + b"\1"])
def test_endless_varints_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        varint.read_uvarint(memoryview(data), 0)
