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
_NUMBERED: Final = struct.Struct(">IBQ")
_SECTION: Final = struct.Struct(">16siiqqqI")
_ACK: Final = struct.Struct(">16siiq")
# Methods, so that the loops over partitions need not look them up.
_pack_section: Final = _SECTION.pack
_unpack_section: Final = _SECTION.unpack_from
_pack_ack: Final = _ACK.pack
_COPIED: Final = 64 << 10


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
    """What a frame that came says about one partition. Compiled, its fields are machine words."""

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


class Draft:
    """A frame of records in the making."""

    __slots__ = ("_buffers", "_length", "sections")

    def __init__(self) -> None:
        self.sections = 0
        self._buffers: list[Buffer] = [b""]
        self._length = 1 + _NUMBER.size

    def add(
        self,
        key: PartitionKey,
        epoch: int,
        base: int,
        high_watermark: int,
        log_start: int,
        records: memoryview | None,
    ) -> None:
        """What it says about one partition. Whole batches; None: nothing new but what else is said here."""
        self.sections += 1
        size = 0 if records is None else len(records)
        head = _pack_section(key[0], key[1], epoch, base, high_watermark, log_start, size)
        self._buffers.append(head)
        self._length += _SECTION.size + size
        if records is not None:
            self._buffers.append(records)

    @property
    def is_short(self) -> bool:
        """So little that to copy the records is cheaper than to send them from where they are."""
        return self._length <= _COPIED

    def finish(self, number: int) -> list[Buffer]:
        self._buffers[0] = _NUMBERED.pack(self._length, DATA, number)
        return [b"".join(self._buffers)] if self.is_short else self._buffers


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
    return [_NUMBERED.pack(1 + _NUMBER.size, TAKEN, number)]


def read_taken(body: memoryview) -> int:
    if len(body) != _NUMBER.size:
        raise MalformedFrame("not the number of a frame")
    number: int = _NUMBER.unpack(body)[0]
    return number


def acks(number: int, entries: list[Acknowledged]) -> list[Buffer]:
    body = b"".join([_pack_ack(key[0], key[1], epoch, end) for key, epoch, end in entries])
    return [_NUMBERED.pack(1 + _NUMBER.size + len(body), ACK, number) + body]


def read_acks(body: memoryview) -> tuple[int, list[Acknowledged]]:
    if len(body) < _NUMBER.size or (len(body) - _NUMBER.size) % _ACK.size:
        raise MalformedFrame("an acknowledgement cut short")
    found: list[Acknowledged] = []
    for topic_id, partition, epoch, end in _ACK.iter_unpack(body[_NUMBER.size :]):
        found.append(((topic_id, partition), epoch, end))
    return _NUMBER.unpack_from(body)[0], found
