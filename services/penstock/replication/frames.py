"""What leader and backup say to each other; bytes in, values out, no I/O.

frame    u32 length of the rest | u8 kind | body          big-endian

HELLO    JSON, leader to backup, first on every connection: who it is, which lane this is
ATTACH   JSON list: partitions and epochs; answered by ATTACHED: what the backup has, or why not
BEGIN    JSON list: where to cut; answered by BEGUN: where to go on
DATA     u32 number | sections: topic id, partition, epoch, base offset, high watermark, log start,
         size, then `size` bytes of whole batches. No section at all: a heartbeat
ACK      u32 number of the newest frame dealt with, 0 for none | topic id, partition, epoch, end offset ...
REFUSED  JSON list: partitions whose frames are not taken, and the epoch promised
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple

from penstock.cluster.partitions import PartitionKey
from penstock.wire.batch import Buffer

MAX_FRAME: Final = 256 << 20
HEAD: Final = struct.Struct(">IB")
_NUMBER: Final = struct.Struct(">I")
_SECTION: Final = struct.Struct(">16siiqqqI")
_ACK: Final = struct.Struct(">16siiq")


class Kind(IntEnum):
    HELLO = 1
    ATTACH = 2
    ATTACHED = 3
    BEGIN = 4
    BEGUN = 5
    DATA = 6
    ACK = 7
    REFUSED = 8


class Section(NamedTuple):
    key: PartitionKey
    epoch: int
    base: int
    high_watermark: int
    log_start: int
    records: memoryview


class Acknowledged(NamedTuple):
    key: PartitionKey
    epoch: int
    end: int


class MalformedFrame(Exception):
    pass


def message(kind: Kind, value: Any) -> list[Buffer]:
    body = json.dumps(value).encode()
    return [HEAD.pack(len(body) + 1, kind) + body]


def read_message(body: memoryview) -> Any:
    try:
        return json.loads(bytes(body))
    except ValueError as error:
        raise MalformedFrame(str(error)) from None


def data(
    number: int, sections: Iterable[tuple[PartitionKey, int, int, int, int, memoryview | None]]
) -> list[Buffer]:
    """One frame as a list of buffers; records stay where they are."""
    buffers: list[Buffer] = [b""]
    length = 1 + _NUMBER.size
    for (topic_id, partition), epoch, base, watermark, log_start, records in sections:
        size = 0 if records is None else len(records)
        buffers.append(_SECTION.pack(topic_id, partition, epoch, base, watermark, log_start, size))
        length += _SECTION.size + size
        if records is not None:
            buffers.append(records)
    buffers[0] = HEAD.pack(length, Kind.DATA) + _NUMBER.pack(number)
    return buffers


def read_data(body: memoryview) -> tuple[int, Iterator[Section]]:
    if len(body) < _NUMBER.size:
        raise MalformedFrame("a frame without a number")
    return _NUMBER.unpack_from(body)[0], _sections(body)


def _sections(body: memoryview) -> Iterator[Section]:
    at = _NUMBER.size
    while at < len(body):
        if len(body) - at < _SECTION.size:
            raise MalformedFrame("a section cut short")
        topic_id, partition, epoch, base, watermark, log_start, size = _SECTION.unpack_from(body, at)
        at += _SECTION.size
        if size > len(body) - at:
            raise MalformedFrame("a section that is longer than its frame")
        yield Section((topic_id, partition), epoch, base, watermark, log_start, body[at : at + size])
        at += size


def acks(number: int, entries: Iterable[tuple[PartitionKey, int, int]]) -> list[Buffer]:
    body = b"".join(_ACK.pack(key[0], key[1], epoch, end) for key, epoch, end in entries)
    return [HEAD.pack(1 + _NUMBER.size + len(body), Kind.ACK) + _NUMBER.pack(number) + body]


def read_acks(body: memoryview) -> tuple[int, list[Acknowledged]]:
    if (len(body) - _NUMBER.size) % _ACK.size:
        raise MalformedFrame("an acknowledgement cut short")
    found = [
        Acknowledged((topic_id, partition), epoch, end)
        for topic_id, partition, epoch, end in _ACK.iter_unpack(body[_NUMBER.size :])
    ]
    return _NUMBER.unpack_from(body)[0], found
