"""Produce, by hand: requests to views and responses to bytes.

The one request that carries the data. kio would copy every batch into a bytes object (for 8 chunks of
128 KiB that costs more than everything else the broker does with them), so this decoder hands out views
into the receive buffer, valid until the next read. The response is struct-packed for the same reason:
an order of magnitude less time than building entities.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.wire.errors import ErrorCode, MalformedRequest
from penstock.wire.head import RequestHead, header_length
from penstock.wire.varint import put_uvarint, read_uvarint, skip_tags

FLEXIBLE: Final = 9
TOPIC_IDS: Final = 13

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_INDEX_LENGTH: Final = struct.Struct(">ii")
_FRAME: Final = struct.Struct(">ii")
_ANSWER_V3: Final = struct.Struct(">ihqq")
_ANSWER_V5: Final = struct.Struct(">ihqqq")
_ANSWER_V8: Final = struct.Struct(">ihqqqih")
_ANSWER_V9: Final = struct.Struct(">ihqqqBBB")
# Methods, so that the loops over partitions need not look them up.
_unpack_int: Final = _INT.unpack_from
_unpack_index_length: Final = _INDEX_LENGTH.unpack_from
_pack_v8: Final = _ANSWER_V8.pack
_pack_v9: Final = _ANSWER_V9.pack


# Bare tuples and plain classes: there is one of each per chunk or request, and compiled (`make compile`)
# their fields are machine words, where those of a NamedTuple are looked up by name.
ProducedPartition = tuple[int, memoryview | None]
"""(partition, records)"""
PartitionAnswer = tuple[int, int, int, int, int, str | None]
"""(partition, error code, base offset, append time, log start, message)"""


class ProducedTopic:
    """`name` is set up to version 12, `topic_id` from 13 on."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, partitions: list[ProducedPartition]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions


class ProduceRequest:
    __slots__ = ("acks", "client_id", "timeout_ms", "topics", "transactional_id")

    def __init__(
        self,
        client_id: str,
        transactional_id: str | None,
        acks: int,
        timeout_ms: int,
        topics: list[ProducedTopic],
    ) -> None:
        self.client_id = client_id
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topics = topics


class TopicAnswer:
    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, partitions: list[PartitionAnswer]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions


def read_produce(head: RequestHead, frame: memoryview) -> ProduceRequest:
    try:
        return _read(head, frame)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"produce v{head.api_version}: {error}") from None


def _read(head: RequestHead, frame: memoryview) -> ProduceRequest:
    flexible = head.api_version >= FLEXIBLE
    client_id, at = header_length(head, frame, flexible=flexible)
    if flexible:
        return _read_flexible(head, frame, at, client_id)
    transactional_id, at = _short_string(frame, at)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, at)
    topic_count = _INT.unpack_from(frame, at + 6)[0]
    at += 10
    topics = []
    end = len(frame)
    for _ in range(topic_count):
        name, at = _short_string(frame, at)
        partition_count = _INT.unpack_from(frame, at)[0]
        at += 4
        partitions: list[ProducedPartition] = []
        for _ in range(partition_count):
            index, length = _unpack_index_length(frame, at)
            at += 8
            records: memoryview | None = None
            if length >= 0:
                if length > end - at:
                    raise MalformedRequest("records reach past the end of the request")
                records = frame[at : at + length]
                at += length
            partitions.append((index, records))
        topics.append(ProducedTopic(name or "", b"", partitions))
    return ProduceRequest(client_id, transactional_id, acks, timeout_ms, topics)


def _read_flexible(head: RequestHead, frame: memoryview, at: int, client_id: str) -> ProduceRequest:
    by_id = head.api_version >= TOPIC_IDS
    transactional_id, at = _compact_string(frame, at)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, at)
    topic_count, at = read_uvarint(frame, at + 6)
    topics = []
    end = len(frame)
    for _ in range(topic_count - 1):
        name, topic_id = "", b""
        if by_id:
            topic_id = bytes(frame[at : at + 16])
            at += 16
        else:
            found, at = _compact_string(frame, at)
            name = found or ""
        partition_count, at = read_uvarint(frame, at)
        partitions: list[ProducedPartition] = []
        for _ in range(partition_count - 1):
            index = _unpack_int(frame, at)[0]
            length, at = read_uvarint(frame, at + 4)
            records: memoryview | None = None
            if length:
                length -= 1
                if length > end - at:
                    raise MalformedRequest("records reach past the end of the request")
                records = frame[at : at + length]
                at += length
            if frame[at]:
                _, at = skip_tags(frame, at)
            else:
                at += 1
            partitions.append((index, records))
        _, at = skip_tags(frame, at)
        topics.append(ProducedTopic(name, topic_id, partitions))
    skip_tags(frame, at)
    return ProduceRequest(client_id, transactional_id, acks, timeout_ms, topics)


def _short_string(frame: memoryview, at: int) -> tuple[str | None, int]:
    length = _SHORT.unpack_from(frame, at)[0]
    at += 2
    if length < 0:
        return None, at
    if length > len(frame) - at:
        raise MalformedRequest("string reaches past the end of the request")
    return str(frame[at : at + length], "utf-8"), at + length


def _compact_string(frame: memoryview, at: int) -> tuple[str | None, int]:
    length, at = read_uvarint(frame, at)
    if length == 0:
        return None, at
    length -= 1
    if length > len(frame) - at:
        raise MalformedRequest("string reaches past the end of the request")
    return str(frame[at : at + length], "utf-8"), at + length


def write_produce(head: RequestHead, topics: list[TopicAnswer], throttle_ms: int = 0) -> bytes:
    """A whole frame, length included."""
    version = head.api_version
    out = bytearray(9 if version >= FLEXIBLE else 8)
    if version >= FLEXIBLE:
        _write_flexible(out, version, topics, throttle_ms)
    else:
        out += _INT.pack(len(topics))
        for topic in topics:
            name = topic.name.encode()
            out += _SHORT.pack(len(name)) + name + _INT.pack(len(topic.partitions))
            for index, error, base, time, start, message in topic.partitions:
                if version >= 8:
                    text = b"" if message is None else message.encode()[:1000]
                    out += _pack_v8(index, error, base, time, start, 0, len(text) if text else -1)
                    out += text
                elif version >= 5:
                    out += _ANSWER_V5.pack(index, error, base, time, start)
                else:
                    out += _ANSWER_V3.pack(index, error, base, time)
        out += _INT.pack(throttle_ms)
    _FRAME.pack_into(out, 0, len(out) - 4, head.correlation_id)
    return bytes(out)


def _write_flexible(out: bytearray, version: int, topics: list[TopicAnswer], throttle_ms: int) -> None:
    put_uvarint(out, len(topics) + 1)
    for topic in topics:
        if version >= TOPIC_IDS:
            out += topic.topic_id
        else:
            name = topic.name.encode()
            put_uvarint(out, len(name) + 1)
            out += name
        put_uvarint(out, len(topic.partitions) + 1)
        for index, error, base, time, start, message in topic.partitions:
            if message is None:
                # record errors: none; message: null; tags: none
                out += _pack_v9(index, error, base, time, start, 1, 0, 0)
            else:
                text = message.encode()[:1000]
                out += _ANSWER_V5.pack(index, error, base, time, start)
                out.append(1)
                put_uvarint(out, len(text) + 1)
                out += text
                out.append(0)
        out.append(0)
    out += _INT.pack(throttle_ms)
    out.append(0)


NO_ERROR: Final = int(ErrorCode.none)
