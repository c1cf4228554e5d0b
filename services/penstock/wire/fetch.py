"""Fetch responses, by hand: a list of buffers in which the batches are the log's own memory.

Whoever sends them passes the list to the socket as it is, so that no byte of the log is copied in
Python; whoever owns the views keeps the memory held until they are out.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from penstock.wire.batch import Buffer
from penstock.wire.head import RequestHead
from penstock.wire.varint import put_uvarint

FLEXIBLE: Final = 12
TOPIC_IDS: Final = 13

_FRAME: Final = struct.Struct(">ii")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_TOP: Final = struct.Struct(">ihi")
_PARTITION: Final = struct.Struct(">ihqq")
_PARTITION_V5: Final = struct.Struct(">ihqqq")
_NULL_ARRAY: Final = b"\xff\xff\xff\xff"
_NO_REPLICA: Final = b"\xff\xff\xff\xff"


class FetchedPartition(NamedTuple):
    partition: int
    error: int
    high_watermark: int
    log_start: int
    records: Buffer


class FetchedTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: list[FetchedPartition]


def write_fetch(head: RequestHead, topics: list[FetchedTopic], error: int = 0) -> list[Buffer]:
    """The frame as buffers to be sent in this order."""
    version = head.api_version
    flexible = version >= FLEXIBLE
    buffers: list[Buffer] = []
    size = 0
    out = bytearray(9 if flexible else 8)
    out += _TOP.pack(0, error, 0) if version >= 7 else _INT.pack(0)
    _put_count(out, len(topics), flexible)
    for topic in topics:
        if version >= TOPIC_IDS:
            out += topic.topic_id
        else:
            name = topic.name.encode()
            if flexible:
                put_uvarint(out, len(name) + 1)
            else:
                out += _SHORT.pack(len(name))
            out += name
        _put_count(out, len(topic.partitions), flexible)
        for index, code, high_watermark, log_start, records in topic.partitions:
            # Without transactions everything below the high watermark is stable.
            if version >= 5:
                out += _PARTITION_V5.pack(index, code, high_watermark, high_watermark, log_start)
            else:
                out += _PARTITION.pack(index, code, high_watermark, high_watermark)
            out += b"\0" if flexible else _NULL_ARRAY
            if version >= 11:
                out += _NO_REPLICA
            length = len(records)
            if flexible:
                put_uvarint(out, length + 1)
            else:
                out += _INT.pack(length)
            if length:
                buffers += (out, records)
                size += len(out) + length
                out = bytearray()
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    buffers.append(out)
    size += len(out)
    first = buffers[0]
    assert isinstance(first, bytearray)
    _FRAME.pack_into(first, 0, size - 4, head.correlation_id)
    return buffers


def _put_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        put_uvarint(out, count + 1)
    else:
        out += _INT.pack(count)
