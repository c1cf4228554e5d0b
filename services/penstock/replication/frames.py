"""What leader and backup say to each other; bytes in, values out, no I/O.

frame    u32 length of the rest | u8 kind | body          big-endian

HELLO    JSON, leader to backup, first on every connection: who it is, which lane this is
ATTACH   JSON list: partitions and epochs; answered by ATTACHED: what the backup has, or why not
BEGIN    JSON list: where to cut; answered by BEGUN: where to go on
DATA     u64 number, one higher each time | sections: topic id, partition, epoch, base offset, high watermark,
         log start, size, then `size` bytes of whole batches. No section at all: a heartbeat
TAKEN    u64 number of a frame, all of which is here and counts: the answer to nearly every one
ACK      u64 number of any other frame, 0 for none | topic id, partition, epoch, end offset ...
REFUSED  JSON list: partitions whose frames are not taken, and the epoch promised
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import Any, Final

from penstock.cluster.partitions import PartitionKey
from penstock.wire.batch import Buffer

MAX_FRAME: Final = 256 << 20
HEAD: Final = struct.Struct(">IB")
_NUMBER: Final = struct.Struct(">Q")
_TAKEN: Final = struct.Struct(">IBQ")
_SECTION: Final = struct.Struct(">16siiqqqI")
_ACK: Final = struct.Struct(">16siiq")
# Methods, so that the loops over partitions need not look them up.
_pack_section: Final = _SECTION.pack
_unpack_section: Final = _SECTION.unpack_from
_pack_ack: Final = _ACK.pack
COPIED: Final = 64 << 10
"""Bytes of records in a frame up to which they are copied into it."""


class Kind(IntEnum):
    HELLO = 1
    ATTACH = 2
    ATTACHED = 3
    BEGIN = 4
    BEGUN = 5
    DATA = 6
    ACK = 7
    REFUSED = 8
    TAKEN = 9


# Those that come all the time, without a look into the enumeration.
DATA: Final = 6
ACK: Final = 7
TAKEN: Final = 9


class Section:
    """What one frame says about one partition. A plain class: compiled, its fields are machine words."""

    __slots__ = ("base", "epoch", "high_watermark", "key", "log_start", "records")

    def __init__(
        self,
        key: PartitionKey,
        epoch: int,
        base: int,
        high_watermark: int,
        log_start: int,
        records: memoryview | None,
    ) -> None:
        self.key = key
        self.epoch = epoch
        self.base = base
        self.high_watermark = high_watermark
        self.log_start = log_start
        self.records = records
        """Whole batches; None: nothing new but what else is said here."""


Acknowledged = tuple[PartitionKey, int, int]
"""(partition, epoch, end offset)"""


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


def data(number: int, sections: list[Section], copied: bool) -> list[Buffer]:
    """One frame. Records stay where they are, unless so little that a copy is cheaper than more buffers."""
    buffers: list[Buffer] = [b""]
    length = 1 + _NUMBER.size
    for section in sections:
        records = section.records
        size = 0 if records is None else len(records)
        topic_id, partition = section.key
        buffers.append(
            _pack_section(
                topic_id,
                partition,
                section.epoch,
                section.base,
                section.high_watermark,
                section.log_start,
                size,
            )
        )
        length += _SECTION.size + size
        if records is not None:
            buffers.append(records)
    buffers[0] = HEAD.pack(length, DATA) + _NUMBER.pack(number)
    return [b"".join(buffers)] if copied else buffers


def read_data(body: memoryview) -> tuple[int, list[Section]]:
    size = len(body)
    at: int = _NUMBER.size
    if size < at:
        raise MalformedFrame("a frame without a number")
    sections = []
    while at < size:
        if size - at < _SECTION.size:
            raise MalformedFrame("a section cut short")
        topic_id, partition, epoch, base, watermark, log_start, length = _unpack_section(body, at)
        at += _SECTION.size
        if length > size - at:
            raise MalformedFrame("a section that is longer than its frame")
        records = body[at : at + length] if length else None
        sections.append(Section((topic_id, partition), epoch, base, watermark, log_start, records))
        at += length
    return _NUMBER.unpack_from(body)[0], sections


def taken(number: int) -> list[Buffer]:
    return [_TAKEN.pack(1 + _NUMBER.size, TAKEN, number)]


def read_taken(body: memoryview) -> int:
    if len(body) != _NUMBER.size:
        raise MalformedFrame("not the number of a frame")
    number: int = _NUMBER.unpack(body)[0]
    return number


def acks(number: int, entries: list[Acknowledged]) -> list[Buffer]:
    body = b"".join([_pack_ack(key[0], key[1], epoch, end) for key, epoch, end in entries])
    return [HEAD.pack(1 + _NUMBER.size + len(body), ACK) + _NUMBER.pack(number) + body]


def read_acks(body: memoryview) -> tuple[int, list[Acknowledged]]:
    if len(body) < _NUMBER.size or (len(body) - _NUMBER.size) % _ACK.size:
        raise MalformedFrame("an acknowledgement cut short")
    found: list[Acknowledged] = []
    for topic_id, partition, epoch, end in _ACK.iter_unpack(body[_NUMBER.size :]):
        found.append(((topic_id, partition), epoch, end))
    return _NUMBER.unpack_from(body)[0], found
