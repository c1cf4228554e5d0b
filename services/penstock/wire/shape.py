"""The shape of a request, checked before kio reads it.

kio's native reader trusts lengths: it allocates what an array's count promises, so that forty bytes could
end the process; it takes a null array where the schema has none; and it refuses tagged fields that its
schema lacks, which a newer client may send and Kafka's rule is to skip. So every request is walked first,
by a plan made once per schema: what doesn't fit is MalformedRequest, unknown tags are taken out.
"""

from __future__ import annotations

from dataclasses import Field, fields
from functools import cache
from typing import Any, Final, NamedTuple

from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    get_field_tag,
    is_optional,
)

from penstock.wire.errors import MalformedRequest
from penstock.wire.varint import put_uvarint, read_uvarint

_SIZES: Final = {
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


# Plain numbers, not an enum: they are compared for every part of every request.
_FIXED: Final = 0
_COMPACT: Final = 1
"""Length as a varint, then bytes: strings and bytes of flexible versions."""
_TEXT: Final = 2
"""Length as two bytes."""
_BYTES: Final = 3
"""Length as four bytes."""
_ARRAY: Final = 4
_ENTITY: Final = 5


class _Step(NamedTuple):
    kind: int
    size: int
    """Of a fixed stretch; of an array, the least that one entry takes."""
    nullable: bool = False
    inner: _Shape | _Step | None = None


class _Shape(NamedTuple):
    flexible: bool
    steps: tuple[_Step, ...]
    tags: dict[int, _Step]
    least: int
    fixed: int | None
    """The size of the fields when it is always the same, without the tags."""


class _Cut(NamedTuple):
    """A tag section with unknown tags, and what stays of it."""

    start: int
    end: int
    kept: bytes


def checked(entity: Any, frame: memoryview, position: int, header_tags: int) -> memoryview:
    """The request in `frame`, safe to be read as `entity`. Its body is at `position`, its header's tag
    section at `header_tags` (the same, where there is none)."""
    shape = _shape(entity)
    cuts: list[_Cut] = []
    if position - header_tags > 1:
        cuts.append(_Cut(header_tags, position, b"\0"))
    _walk(shape, frame, position, len(frame), cuts)
    if not cuts:
        return frame
    out = bytearray()
    done = 0
    for start, end, kept in cuts:
        out += frame[done:start]
        out += kept
        done = end
    out += frame[done:]
    return memoryview(bytes(out))


def _walk(shape: _Shape, frame: memoryview, at: int, end: int, cuts: list[_Cut]) -> int:
    flexible = shape.flexible
    for step in shape.steps:
        # The commonest is done here: this runs for every partition of every fetch request.
        at = at + step[1] if step[0] == _FIXED else _pass(step, frame, at, end, cuts, flexible)
    if not flexible:
        if at > end:
            raise MalformedRequest("request cut short")
        return at
    if at < end and frame[at] == 0:
        return at + 1
    return _pass_tags(shape, frame, at, end, cuts)


def _pass(step: _Step, frame: memoryview, at: int, end: int, cuts: list[_Cut], flexible: bool) -> int:
    kind = step.kind
    if kind == _FIXED:
        return at + step.size
    if kind == _COMPACT:
        length, at = read_uvarint(frame, at)
        return at + length - 1 if length else at
    if kind == _TEXT:
        return at + 2 + max(int.from_bytes(frame[at : at + 2], "big", signed=True), 0)
    if kind == _BYTES:
        return at + 4 + max(int.from_bytes(frame[at : at + 4], "big", signed=True), 0)
    inner = step.inner
    if kind == _ENTITY:
        assert isinstance(inner, _Shape)
        if step.nullable:
            if at >= end or frame[at] > 0x7F:
                return at + 1
            at += 1
        return _walk(inner, frame, at, end, cuts)
    if flexible:
        count, at = read_uvarint(frame, at)
        count -= 1
    else:
        count, at = int.from_bytes(frame[at : at + 4], "big", signed=True), at + 4
    if count < 0:
        if count < -1 or not step.nullable:
            raise MalformedRequest("null for an array that can't be null")
        return at
    if count * step.size > end - at:
        raise MalformedRequest(f"an array of {count} entries in {end - at} bytes")
    if isinstance(inner, _Shape):
        fixed = inner.fixed
        if fixed is None:
            for _ in range(count):
                at = _walk(inner, frame, at, end, cuts)
        elif not flexible:
            at += count * fixed
        else:
            for _ in range(count):
                at += fixed
                at = at + 1 if at < end and frame[at] == 0 else _pass_tags(inner, frame, at, end, cuts)
        return at
    assert inner is not None
    if inner.kind == _FIXED:
        return at + count * inner.size
    for _ in range(count):
        at = _pass(inner, frame, at, end, cuts, flexible)
    return at


def _pass_tags(shape: _Shape, frame: memoryview, at: int, end: int, cuts: list[_Cut]) -> int:
    section = at
    kept = []
    inside: list[_Cut] = []
    count, at = read_uvarint(frame, at)
    for _ in range(count):
        start = at
        tag, at = read_uvarint(frame, at)
        size, at = read_uvarint(frame, at)
        if size > end - at:
            raise MalformedRequest("tagged field reaches past the end of the request")
        known = shape.tags.get(tag)
        if known is not None:
            if _pass(known, frame, at, at + size, inside, True) != at + size or inside:
                raise MalformedRequest(f"tagged field {tag} is not what it should be")
            kept.append(frame[start : at + size])
        at += size
    if len(kept) < count:
        out = bytearray()
        put_uvarint(out, len(kept))
        for field in kept:
            out += field
        cuts.append(_Cut(section, at, bytes(out)))
    return at


@cache
def _shape(entity: Any) -> _Shape:
    flexible = bool(entity.__flexible__)
    steps: list[_Step] = []
    tags: dict[int, _Step] = {}
    least = 1 if flexible else 0
    for field in fields(entity):
        step, size = _step(field, flexible)
        tag = get_field_tag(field)
        if tag is not None:
            tags[int(tag)] = step
            continue
        least += size
        if step.kind == _FIXED and steps and steps[-1].kind == _FIXED:
            steps[-1] = _Step(_FIXED, steps[-1].size + step.size)
        else:
            steps.append(step)
    is_fixed = all(step.kind == _FIXED for step in steps)
    fixed = sum(step.size for step in steps) if is_fixed else None
    return _Shape(flexible, tuple(steps), tags, least, fixed)


def _step(field: Field[Any], flexible: bool) -> tuple[_Step, int]:
    """The step for a field, and the least that it takes."""
    kind = classify_field(field)
    nullable = is_optional(field)
    if isinstance(kind, EntityField):
        shape = _shape(kind.type_)
        return _Step(_ENTITY, 0, nullable, shape), 1 if nullable else shape.least
    length = 1 if flexible else 4
    if isinstance(kind, EntityTupleField):
        shape = _shape(kind.type_)
        return _Step(_ARRAY, max(shape.least, 1), nullable, shape), length
    one, least = _primitive(field.metadata["kafka_type"], flexible)
    if isinstance(kind, PrimitiveTupleField):
        return _Step(_ARRAY, least, nullable, one), length
    return one, least


def _primitive(kafka_type: str, flexible: bool) -> tuple[_Step, int]:
    size = _SIZES.get(kafka_type)
    if size is not None:
        return _Step(_FIXED, size), size
    if flexible:
        return _Step(_COMPACT, 0), 1
    if kafka_type == "string":
        return _Step(_TEXT, 0), 2
    return _Step(_BYTES, 0), 4
