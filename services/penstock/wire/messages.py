"""Kafka messages in and out, with kio doing the bytes.

A request comes as kio's entity of its version. A response is given as a plain tree: dicts with kio's
field names, lists for arrays, whole milliseconds for durations and timestamps. Here it becomes the
entity of the version that was asked for: fields which that version lacks are dropped, fields that the
tree lacks take their defaults. So a handler is written once for all versions.
"""

from __future__ import annotations

import datetime
import io
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.serial._implicit_defaults import get_implicit_default
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    is_optional,
)

from penstock.wire import shape
from penstock.wire.errors import ErrorCode, MalformedRequest
from penstock.wire.head import RequestHead, header_length

Tree = Mapping[str, Any]
_Build = Callable[[Tree], Any]
_UTC: Final = datetime.UTC
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
_FRAME: Final = struct.Struct(">ii")


class Request(NamedTuple):
    head: RequestHead
    client_id: str
    body: Any


@cache
def _request_codec(api_key: int, version: int) -> tuple[Any, Any, Any]:
    schema = load_request_schema(api_key, version)
    return schema, entity_reader(schema.__header_schema__), entity_reader(schema)


def read_request(head: RequestHead, frame: memoryview) -> Request:
    """Decode a frame of an API and version that kio has. Anything that doesn't fit is MalformedRequest."""
    schema, read_header, read_body = _request_codec(head.api_key, head.api_version)
    try:
        _, position = header_length(head, frame, flexible=schema.__flexible__)
        tags = 10 + max(int.from_bytes(frame[8:10], "big", signed=True), 0)
        view = shape.checked(schema, frame, position, tags).toreadonly()
        header, used = read_header(view, 0)
        body, _ = read_body(view, used)
    except Exception as error:  # whatever the decoder says, the bytes are wrong
        raise MalformedRequest(f"api {head.api_key} v{head.api_version}: {error}") from error
    return Request(head, header.client_id or "", body)


@cache
def _response_codec(api_key: int, version: int) -> tuple[_Build, Any, int]:
    schema = load_response_schema(api_key, version)
    header = schema.__header_schema__
    return entity_builder(schema), entity_writer(schema), int(header.__version__)


def write_response(api_key: int, version: int, correlation_id: int, tree: Tree) -> bytes:
    """A whole frame, length included."""
    build, write, header_version = _response_codec(api_key, version)
    buffer = io.BytesIO()
    buffer.write(b"\0\0\0\0\0\0\0\0\0" if header_version else b"\0\0\0\0\0\0\0\0")
    write(buffer, build(tree))
    frame = buffer.getbuffer()
    _FRAME.pack_into(frame, 0, len(frame) - 4, correlation_id)
    return bytes(frame)


def _milliseconds(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


def _timestamp(value: int | None) -> datetime.datetime | None:
    return None if value is None or value < 0 else _EPOCH + datetime.timedelta(milliseconds=value)


_CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "timedelta_i32": _milliseconds,
    "timedelta_i64": _milliseconds,
    "datetime_i64": _timestamp,
}


@cache
def entity_builder(entity: Any) -> _Build:
    """A function from a tree to `entity`, made once per type."""
    plan: list[tuple[str, Callable[[Any], Any] | None, Any]] = []
    for field in fields(entity):
        kind = classify_field(field)
        convert: Callable[[Any], Any] | None
        if isinstance(kind, EntityTupleField):
            convert = _each(entity_builder(kind.type_))
        elif isinstance(kind, EntityField):
            convert = _maybe(entity_builder(kind.type_))
        elif isinstance(kind, PrimitiveTupleField):
            convert = tuple
        else:
            convert = _CONVERTERS.get(field.metadata["kafka_type"])
        plan.append((field.name, convert, _default(field, kind)))

    def build(tree: Tree) -> Any:
        values = {}
        for name, convert, default in plan:
            if name in tree:
                value = tree[name]
                values[name] = convert(value) if convert is not None and value is not None else value
            else:
                values[name] = default
        return entity(**values)

    return build


def _each(build: _Build) -> Callable[[Sequence[Tree]], tuple[Any, ...]]:
    return lambda trees: tuple([build(tree) for tree in trees])


def _maybe(build: _Build) -> Callable[[Tree | None], Any]:
    return lambda tree: None if tree is None else build(tree)


def _default(field: Field[Any], kind: Any) -> Any:
    if field.default is not MISSING:
        return field.default
    if isinstance(kind, EntityTupleField | PrimitiveTupleField):
        return ()
    if is_optional(field):
        return None
    if isinstance(kind, EntityField):
        return entity_builder(kind.type_)({})
    if field.metadata["kafka_type"] == "error_code":
        return ErrorCode.none
    return False if kind.type_ is bool else get_implicit_default(kind.type_)
