"""The head of a request: which API and version, whose, and where its body begins. No I/O."""

from __future__ import annotations

import struct
from typing import Final

from penstock.wire.errors import MalformedRequest
from penstock.wire.varint import skip_tags

_HEAD: Final = struct.Struct(">hhi")


class RequestHead:
    """The part of a request header that is the same in every version."""

    __slots__ = ("api_key", "api_version", "correlation_id")

    def __init__(self, api_key: int, api_version: int, correlation_id: int) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id


def read_head(frame: memoryview) -> RequestHead:
    if len(frame) < _HEAD.size:
        raise MalformedRequest(f"a frame of {len(frame)} bytes is no request")
    api_key, api_version, correlation_id = _HEAD.unpack_from(frame, 0)
    return RequestHead(api_key, api_version, correlation_id)


def header_length(head: RequestHead, frame: memoryview, *, flexible: bool) -> tuple[str, int]:
    """(client id, bytes of header) for the hand-written decoders."""
    end = len(frame)
    if end < 10:
        raise MalformedRequest("request header cut short")
    length = int.from_bytes(frame[8:10], "big", signed=True)
    position = 10 + max(length, 0)
    if position + flexible > end:
        raise MalformedRequest("client id reaches past the end of the request")
    client_id = str(frame[10:position], "utf-8", "replace") if length > 0 else ""
    if flexible:
        if frame[position] != 0:
            _, position = skip_tags(frame, position)
        else:
            position += 1
    return client_id, position
