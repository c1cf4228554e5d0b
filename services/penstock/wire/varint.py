"""Unsigned varints and tagged fields, as flexible versions of Kafka's messages have them. No I/O."""

from __future__ import annotations

from penstock.wire.errors import MalformedRequest


def read_uvarint(frame: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    end = len(frame)
    while True:
        if position >= end or shift > 28:
            raise MalformedRequest("bad unsigned varint")
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def put_uvarint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def skip_tags(frame: memoryview, position: int) -> tuple[int, int]:
    """Past a tagged-field section that has nothing of use: (number of tags, new position)."""
    count, position = read_uvarint(frame, position)
    for _ in range(count):
        _, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        position += size
        if position > len(frame):
            raise MalformedRequest("tagged field reaches past the end of the request")
    return count, position
