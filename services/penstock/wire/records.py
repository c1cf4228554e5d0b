"""Inside Kafka v2 record batches: records to bytes and back, compressed or not.

    record:  length | attributes i8 | timestamp delta | offset delta
             | key length, key | value length, value | header count, (key length, key, value length, value)*

Lengths, deltas and counts are zigzag varints; a length of -1 is null (not for a header's key). With
compression, everything after the batch's header is one compressed block.

Called where the log must know what it holds: compaction, the internal topics, local readers, the CLI.
Produce and fetch never come here. Whatever the bytes, decoding ends with the records or CorruptRecords.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import cramjam
from crc32c import crc32c

from penstock.wire.batch import (
    ATTRIBUTES,
    COMPRESSION_MASK,
    CONTROL,
    CRC,
    HEADER_SIZE,
    LENGTH_PREFIX,
    LOG_APPEND_TIME,
    NO_PRODUCER,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    Buffer,
    read_header,
)

MAX_DECOMPRESSED: Final = 256 << 20

Headers = tuple[tuple[str, bytes | None], ...]


class CorruptRecords(ValueError):
    """Bytes that are not a whole, valid v2 record batch."""


class Compression(IntEnum):
    """As in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Record(NamedTuple):
    """One record; a NamedTuple because one is made per record and it is the quickest to make."""

    offset: int
    timestamp: int
    """Milliseconds since 1970; when it was made, or appended, as the topic says."""
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


# -- compression ----------------------------------------------------------------------------------------

_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 << 10
_INT32: Final = struct.Struct(">i")
_GZIP_WINDOW: Final = 31  # zlib's way to say: gzip header and trailer, largest window


def compress(payload: Buffer, compression: Compression) -> bytes:
    if compression is Compression.GZIP:
        return zlib.compress(payload, wbits=_GZIP_WINDOW)
    if compression is Compression.SNAPPY:
        return _compress_snappy(payload)
    if compression is Compression.LZ4:
        # Java clients refuse frames whose blocks are linked.
        compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
        compressor.compress(bytes(payload))
        return bytes(compressor.finish())
    if compression is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(payload))
    return bytes(payload)


def decompress(payload: Buffer, compression: Compression, limit: int = MAX_DECOMPRESSED) -> bytes:
    """At most `limit` bytes; more, or anything that is no such stream, is CorruptRecords."""
    if compression is Compression.NONE:
        if len(payload) > limit:
            raise CorruptRecords(f"{len(payload)} bytes of records, more than the {limit} allowed")
        return bytes(payload)
    if len(payload) == 0:
        raise CorruptRecords(f"no {compression.name.lower()} stream")
    try:
        if compression is Compression.SNAPPY:
            return _decompress_snappy(payload, limit)
        # Untouched pages of the map cost nothing: a bomb is stopped at the limit by the map's end, and an
        # honest batch pays for its own size only.
        with mmap.mmap(-1, max(limit, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as out:
            size = _DECOMPRESS_INTO[compression](payload, out)
            return out[:size]
    except cramjam.DecompressionError as error:
        name = compression.name.lower()
        raise CorruptRecords(f"{name} stream broken, or over {limit} bytes: {error}") from None


_DECOMPRESS_INTO: Final[dict[Compression, Callable[[Buffer, mmap.mmap], int]]] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}


def _compress_snappy(payload: Buffer) -> bytes:
    """In the framing of the xerial library, which Java clients write; every client reads it."""
    view = memoryview(payload)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        out += _INT32.pack(len(block))
        out += block
    return bytes(out)


def _decompress_snappy(payload: Buffer, limit: int) -> bytes:
    view = memoryview(payload)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, limit)
    out = bytearray()
    position, end = len(_XERIAL_HEADER), len(view)
    while position < end:
        if end - position < _INT32.size:
            raise CorruptRecords("snappy stream cut in a block's length")
        (size,) = _INT32.unpack_from(view, position)
        position += _INT32.size
        if not 0 < size <= end - position:
            raise CorruptRecords(f"snappy block of {size} bytes in the {end - position} that are left")
        out += _decompress_snappy_block(view[position : position + size], limit - len(out))
        position += size
    return bytes(out)


def _decompress_snappy_block(block: memoryview, limit: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > limit:
        raise CorruptRecords(f"snappy block holds {size} bytes, {limit} are allowed")
    return bytes(cramjam.snappy.decompress_raw(block))


# -- encoding -------------------------------------------------------------------------------------------

_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
_CRC: Final = struct.Struct(">I")
_MAX_DELTA: Final = 2**31 - 1


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    compression: Compression = Compression.NONE,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """One batch of records whose offsets rise from `base_offset` on, gaps allowed.

    Compaction gives `last_offset_delta`, so that a batch that lost records keeps the offsets it covered;
    it may even have lost all of them.
    """
    if not records and last_offset_delta is None:
        raise ValueError("a batch without records needs a last offset delta")
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    payload = bytearray()
    previous = -1
    for record in records:
        delta = record.offset - base_offset
        if not previous < delta <= _MAX_DELTA:
            raise ValueError(f"offset {record.offset} does not follow {base_offset + previous}")
        previous = delta
        body = _encode_record(record, record.timestamp - base_timestamp, delta)
        _put_varint(payload, len(body))
        payload += body
    last = previous if last_offset_delta is None else last_offset_delta
    if not max(previous, 0) <= last <= _MAX_DELTA:
        raise ValueError(f"last offset delta {last}, but a record is at {previous}")

    block = compress(payload, compression) if records else b""
    attributes = int(compression)
    attributes |= LOG_APPEND_TIME * log_append_time | TRANSACTIONAL * transactional | CONTROL * control
    batch = bytearray(HEADER_SIZE)
    _BATCH.pack_into(
        batch,
        0,
        base_offset,
        HEADER_SIZE - LENGTH_PREFIX + len(block),
        leader_epoch,
        2,
        0,
        attributes,
        last,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch += block
    _CRC.pack_into(batch, CRC, crc32c(memoryview(batch)[ATTRIBUTES:]))
    return bytes(batch)


def _encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytearray:
    out = bytearray(1)  # attributes: none are defined
    _put_varint(out, timestamp_delta)
    _put_varint(out, offset_delta)
    _put_bytes(out, record.key)
    _put_bytes(out, record.value)
    _put_varint(out, len(record.headers))
    for name, value in record.headers:
        _put_bytes(out, name.encode())
        _put_bytes(out, value)
    return out


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
    else:
        _put_varint(out, len(value))
        out += value


def _put_varint(out: bytearray, value: int) -> None:
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


# -- decoding -------------------------------------------------------------------------------------------

_FAR: Final = 2**61
"""Bound of timestamps and their deltas in ms: what was decoded can then be encoded again, whatever it was."""


def decode_records(batch: Buffer, *, max_size: int = MAX_DECOMPRESSED) -> list[Record]:
    """The records of one whole batch, whose CRC is checked first; all of them, or CorruptRecords."""
    if len(batch) < HEADER_SIZE:
        raise CorruptRecords(f"{len(batch)} bytes are no record batch")
    header = read_header(batch)
    if header.magic != 2:
        raise CorruptRecords(f"record batch has magic {header.magic}, not 2")
    if header.size != len(batch):
        raise CorruptRecords(f"record batch of {len(batch)} bytes says it has {header.size}")
    view = memoryview(batch)
    if crc32c(view[ATTRIBUTES:]) != header.crc:
        raise CorruptRecords("record batch fails its CRC")
    codec = header.attributes & COMPRESSION_MASK
    if codec > Compression.ZSTD:
        raise CorruptRecords(f"unknown compression {codec}")
    if header.record_count == 0 and header.size == HEADER_SIZE:
        return []  # compaction took every record, and the block that held them
    if not -_FAR <= header.base_timestamp <= _FAR:
        raise CorruptRecords(f"base timestamp {header.base_timestamp}")
    payload = decompress(view[HEADER_SIZE:], Compression(codec), max_size)
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    try:
        records = _decode(
            payload, header.record_count, header.base_offset, header.base_timestamp, append_time
        )
    except IndexError:
        raise CorruptRecords("a record reaches past the end of its batch") from None
    except UnicodeDecodeError:
        raise CorruptRecords("a header's name is not UTF-8") from None
    if records and records[-1].offset > header.last_offset:
        raise CorruptRecords(f"record at offset {records[-1].offset}, batch ends at {header.last_offset}")
    return records


def _decode(
    payload: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> list[Record]:
    # Varints of one and two bytes are spelt out: with a call for each, decoding takes 1.4 times as long.
    # `at` only ever grows, and slices can't leave the payload, so one check at the record's end holds for
    # every length inside it.
    end = len(payload)
    records: list[Record] = []
    append = records.append
    make = tuple.__new__
    at = 0
    previous = base_offset - 1
    if count < 0:
        raise CorruptRecords(f"record batch counts {count} records")
    for _ in range(count):
        raw = payload[at]
        at += 1
        if raw > 0x7F:
            if (more := payload[at]) < 0x80:
                raw = raw & 0x7F | more << 7
                at += 1
            else:
                raw, at = _long_varint(payload, at, raw, 32)
        if raw & 1:
            raise CorruptRecords("record of negative length")
        record_end = at + (raw >> 1)
        if record_end > end:
            raise CorruptRecords(f"record ends at {record_end}, its batch at {end}")

        raw = payload[at + 1]
        at += 2
        if raw > 0x7F:
            if (more := payload[at]) < 0x80:
                raw = raw & 0x7F | more << 7
                at += 1
            else:
                raw, at = _long_varint(payload, at, raw, 62)
        timestamp = base_timestamp + (raw >> 1 ^ -(raw & 1))

        raw = payload[at]
        at += 1
        if raw > 0x7F:
            if (more := payload[at]) < 0x80:
                raw = raw & 0x7F | more << 7
                at += 1
            else:
                raw, at = _long_varint(payload, at, raw, 32)
        offset = base_offset + (raw >> 1 ^ -(raw & 1))
        if offset <= previous:
            raise CorruptRecords(f"offset {offset} follows {previous}")
        previous = offset

        raw = payload[at]
        at += 1
        if raw > 0x7F:
            if (more := payload[at]) < 0x80:
                raw = raw & 0x7F | more << 7
                at += 1
            else:
                raw, at = _long_varint(payload, at, raw, 32)
        key: bytes | None = None
        if raw != 1:
            if raw & 1:
                raise CorruptRecords("key of negative length")
            start = at
            at += raw >> 1
            key = payload[start:at]

        raw = payload[at]
        at += 1
        if raw > 0x7F:
            if (more := payload[at]) < 0x80:
                raw = raw & 0x7F | more << 7
                at += 1
            else:
                raw, at = _long_varint(payload, at, raw, 32)
        value: bytes | None = None
        if raw != 1:
            if raw & 1:
                raise CorruptRecords("value of negative length")
            start = at
            at += raw >> 1
            value = payload[start:at]

        headers: Headers = ()
        raw = payload[at]
        at += 1
        if raw:
            headers, at = _decode_headers(payload, at, raw)

        if at != record_end:
            raise CorruptRecords(f"record's fields end at {at}, the record at {record_end}")
        moment = timestamp if append_time is None else append_time
        append(make(Record, (offset, moment, key, value, headers)))
    if at != end:
        raise CorruptRecords(f"{end - at} bytes follow the last record")
    return records


def _decode_headers(payload: bytes, at: int, first: int) -> tuple[Headers, int]:
    count, at = _long_varint(payload, at, first, 32) if first > 0x7F else (first, at)
    if count & 1:
        raise CorruptRecords("negative count of headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count >> 1):
        raw, at = _long_varint(payload, at + 1, payload[at], 32)
        if raw & 1:
            raise CorruptRecords("header name of negative length")
        start = at
        at += raw >> 1
        name = payload[start:at].decode()
        raw, at = _long_varint(payload, at + 1, payload[at], 32)
        value: bytes | None = None
        if raw != 1:
            if raw & 1:
                raise CorruptRecords("header value of negative length")
            start = at
            at += raw >> 1
            value = payload[start:at]
        headers.append((name, value))
    return tuple(headers), at


def _long_varint(payload: bytes, at: int, first: int, bits: int) -> tuple[int, int]:
    """(unsigned value, next position) of the varint whose first byte was taken from before `at`."""
    raw = first & 0x7F
    shift = 7
    more = first & 0x80
    while more:
        more = payload[at]
        at += 1
        raw |= (more & 0x7F) << shift
        shift += 7
        more &= 0x80
        if raw >> bits:
            raise CorruptRecords(f"varint of more than {bits} bits")
        if shift > 70:
            raise CorruptRecords("varint of more than 10 bytes")
    return raw, at
