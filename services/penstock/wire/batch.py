"""Headers of Kafka v2 record batches: the unit of the log, handled without looking inside.

    0 base offset i64 | 8 batch length i32 | 12 leader epoch i32 | 16 magic i8 | 17 crc u32
    21 attributes i16 | 23 last offset delta i32 | 27 base timestamp i64 | 35 max timestamp i64
    43 producer id i64 | 51 producer epoch i16 | 53 base sequence i32 | 57 count i32 | 61 records

Big-endian. The CRC covers everything from the attributes on, so that a broker can set base offset and
leader epoch without touching it. `records.py` looks inside; everything else works on this header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, cast

from crc32c import crc32c

from penstock.wire.errors import ErrorCode, KafkaError

Buffer = bytes | bytearray | memoryview

BASE_OFFSET: Final = 0
BATCH_LENGTH: Final = 8
LEADER_EPOCH: Final = 12
MAGIC: Final = 16
CRC: Final = 17
ATTRIBUTES: Final = 21
LAST_OFFSET_DELTA: Final = 23
BASE_TIMESTAMP: Final = 27
MAX_TIMESTAMP: Final = 35
PRODUCER_ID: Final = 43
PRODUCER_EPOCH: Final = 51
BASE_SEQUENCE: Final = 53
COUNT: Final = 57
HEADER_SIZE: Final = 61

LENGTH_PREFIX: Final = 12
"""Bytes before the part that `batch length` counts."""

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

NO_PRODUCER: Final = -1
NO_TIMESTAMP: Final = -1

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_Fields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
_PLACE: Final = struct.Struct(">qi")
_LAST_DELTA: Final = struct.Struct(">i")
_EPOCH: Final = struct.Struct(">i")
# Methods, so that the hot path need not look them up.
_unpack_header: Final = _HEADER.unpack_from
_pack_head: Final = struct.Struct(">qii").pack_into
_OFFSET: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")


class BatchHeader:
    """One decoded header, made once per produced batch (hot path: compiled, its fields are machine words)."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
    )

    def __init__(self, buffer: Buffer, position: int) -> None:
        (
            self.base_offset,
            self.batch_length,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = cast(_Fields, _unpack_header(buffer, position))

    @property
    def size(self) -> int:
        return LENGTH_PREFIX + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    return BatchHeader(buffer, position)


def read_place(buffer: Buffer, position: int) -> tuple[int, int]:
    """(base offset, total size) of the batch at `position`."""
    base_offset, length = _PLACE.unpack_from(buffer, position)
    return base_offset, length + LENGTH_PREFIX


def read_last_offset_delta(buffer: Buffer, position: int) -> int:
    delta: int = _LAST_DELTA.unpack_from(buffer, position + LAST_OFFSET_DELTA)[0]
    return delta


def stamp(buffer: memoryview | bytearray, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set what the leader decides: both fields lie outside the CRC."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + LEADER_EPOCH, leader_epoch)


def stamp_fresh(
    buffer: memoryview, position: int, base_offset: int, batch_length: int, leader_epoch: int
) -> None:
    """The same in one store, for a batch whose length is known: they are neighbours."""
    _pack_head(buffer, position, base_offset, batch_length, leader_epoch)


def stamp_append_time(batch: bytearray, timestamp: int) -> None:
    """Turn a batch into a LogAppendTime one; this is inside the CRC, so that is made anew."""
    attributes = int.from_bytes(batch[ATTRIBUTES : ATTRIBUTES + 2], "big") | LOG_APPEND_TIME
    batch[ATTRIBUTES : ATTRIBUTES + 2] = attributes.to_bytes(2, "big")
    _OFFSET.pack_into(batch, MAX_TIMESTAMP, timestamp)
    _CRC.pack_into(batch, CRC, crc32c(memoryview(batch)[ATTRIBUTES:]))


def check_produced(records: Buffer, max_batch: int) -> BatchHeader:
    """The header of the one batch that a produce request holds for a partition, checked.

    Raises KafkaError for what a producer must not send: no batch or more than one, a length that lies,
    an old message format, a wrong CRC, a count that disagrees with the offsets, a control batch, a batch
    that is too large.
    """
    end = len(records)
    if end < HEADER_SIZE:
        # Old formats are shorter than a v2 header but have their magic at the same place.
        if end > MAGIC and records[MAGIC] < 2:
            raise KafkaError(ErrorCode.unsupported_for_message_format, "message format v0/v1; send v2")
        if end == 0:
            raise KafkaError(ErrorCode.invalid_record, "no record batch in the request")
        raise KafkaError(ErrorCode.corrupt_message, "record batch shorter than its header")
    header = BatchHeader(records, 0)
    if header.magic != 2:
        if 0 <= header.magic < 2:
            raise KafkaError(ErrorCode.unsupported_for_message_format, "message format v0/v1; send v2")
        raise KafkaError(ErrorCode.invalid_record, f"unknown record batch magic {header.magic}")
    size = header.batch_length + LENGTH_PREFIX
    if size < HEADER_SIZE or size > end:
        raise KafkaError(ErrorCode.corrupt_message, f"record batch length {header.batch_length} lies")
    if size < end:
        raise KafkaError(ErrorCode.invalid_record, "more than one record batch for one partition")
    if size > max_batch:
        raise KafkaError(
            ErrorCode.message_too_large, f"batch of {size} bytes, max.message.bytes is {max_batch}"
        )
    if crc32c(records[ATTRIBUTES:]) != header.crc:
        raise KafkaError(ErrorCode.corrupt_message, "record batch fails its CRC")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        # Offsets are given out by this delta: a lie here would let a reader run past the batch.
        raise KafkaError(
            ErrorCode.invalid_record,
            f"batch counts {header.record_count} records, last offset delta {header.last_offset_delta}",
        )
    if header.attributes & CONTROL:
        raise KafkaError(ErrorCode.invalid_record, "clients may not write control batches")
    return header


def crc_matches(batch: Buffer) -> bool:
    stored: int = _CRC.unpack_from(batch, CRC)[0]
    return crc32c(memoryview(batch)[ATTRIBUTES:]) == stored


class Located(NamedTuple):
    """A batch and where it lies in the buffer that was walked."""

    position: int
    header: BatchHeader


def read_run(run: memoryview) -> list[BatchHeader]:
    """The headers of a run of whole batches and nothing else, each with its CRC right; else ValueError."""
    headers = []
    position, end = 0, len(run)
    while position < end:
        if end - position < HEADER_SIZE:
            raise ValueError(f"{end - position} bytes behind the last whole batch")
        header = BatchHeader(run, position)
        size = header.batch_length + LENGTH_PREFIX
        if size < HEADER_SIZE or size > end - position or header.magic != 2:
            raise ValueError(f"no whole batch at byte {position} of {end}")
        if crc32c(run[position + ATTRIBUTES : position + size]) != header.crc:
            raise ValueError(f"a torn batch at byte {position} of {end}")
        headers.append(header)
        position += size
    if not headers:
        raise ValueError("no batch at all")
    return headers


def walk(buffer: Buffer, start: int, end: int) -> Iterator[Located]:
    """The whole batches in buffer[start:end]; stops quietly at the first that is not whole or not v2."""
    position = start
    while end - position >= HEADER_SIZE:
        header = read_header(buffer, position)
        size = header.batch_length + LENGTH_PREFIX
        if size < HEADER_SIZE or size > end - position or header.magic != 2:
            return
        yield Located(position, header)
        position += size


def whole_run(buffer: Buffer, start: int, end: int) -> tuple[int, int]:
    """Where the batches that `walk` would find end, and the offset there; (start, -1) if there are none."""
    position, offset = start, -1
    while end - position >= HEADER_SIZE:
        base, size = read_place(buffer, position)
        if size < HEADER_SIZE or size > end - position or buffer[position + MAGIC] != 2:
            break
        offset = base + read_last_offset_delta(buffer, position) + 1
        position += size
    return position, offset
