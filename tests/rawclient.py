"""A Kafka client with nothing between the test and the bytes: frames over a socket, messages by kio.

For tests that must say exactly what goes over the wire: every version of every API, and lies.
"""

from __future__ import annotations

import io
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import fields
from types import TracebackType
from typing import Any, Self

from crc32c import crc32c
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from penstock.wire.messages import entity_builder

NOW = int(time.time() * 1000)
"""Recent, so that retention leaves it alone, and the same for the whole run."""


class ConnectionClosed(Exception):
    """The broker hung up."""


def request_bytes(api_key: int, version: int, tree: dict[str, Any], correlation: int = 7) -> bytes:
    """A whole frame. Fields that `tree` lacks take their defaults, fields the version lacks are dropped."""
    schema = load_request_schema(api_key, version)
    header = schema.__header_schema__
    values = {"request_api_key": api_key, "request_api_version": version, "correlation_id": correlation}
    if any(field.name == "client_id" for field in fields(header)):
        values["client_id"] = "raw"
    out = io.BytesIO()
    entity_writer(header)(out, entity_builder(header)(values))
    entity_writer(schema)(out, entity_builder(schema)(tree))
    return frame(out.getvalue())


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def read_response(api_key: int, version: int, body: bytes) -> tuple[int, Any]:
    """(correlation id, response); every byte must have been used."""
    schema = load_response_schema(api_key, version)
    view = memoryview(body).toreadonly()
    header, at = entity_reader(schema.__header_schema__)(view, 0)
    response, used = entity_reader(schema)(view, at)
    assert at + used == len(body), f"{len(body) - at - used} bytes after the response"
    return header.correlation_id, response


def record_batch(
    values: Iterable[bytes | None],
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    timestamp: int = NOW,
    **lies: int,
) -> bytes:
    """One v2 batch. `lies` replaces header fields: base_offset, length, magic, crc, attributes,
    last_offset_delta, count."""
    records = b""
    count = 0
    for value in values:
        body = b"\0" + _varint(0) + _varint(count) + _varint(-1)
        body += _varint(-1) if value is None else _varint(len(value)) + value
        body += _varint(0)
        records += _varint(len(body)) + body
        count += 1
    producer_id, producer_epoch, sequence = producer
    checked = struct.pack(
        ">hiqqqhii",
        lies.get("attributes", 0),
        lies.get("last_offset_delta", count - 1),
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        sequence,
        lies.get("count", count),
    )
    checked += records
    return (
        struct.pack(
            ">qiibI",
            lies.get("base_offset", 0),
            lies.get("length", len(checked) + 9),
            -1,
            lies.get("magic", 2),
            lies.get("crc", crc32c(checked)),
        )
        + checked
    )


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value & ~0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def produce_tree(
    topic: str, records: bytes | None, partition: int = 0, acks: int = -1, timeout: int = 5000
) -> dict[str, Any]:
    return {
        "acks": acks,
        "timeout": timeout,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
    }


class RawClient:
    def __init__(self, address: str, timeout: float = 10.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        self._correlation = 0

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """The next frame's body."""
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            try:
                chunk = self.socket.recv(count - len(received))
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                raise ConnectionClosed
            received += chunk
        return bytes(received)

    def ask(self, api_key: int, version: int, **tree: Any) -> Any:
        self._correlation += 1
        self.send(request_bytes(api_key, version, tree, self._correlation))
        correlation, response = read_response(api_key, version, self.receive())
        assert correlation == self._correlation
        return response

    def is_closed_by_broker(self) -> bool:
        """Waits for the end of the connection; an answer is a failure."""
        try:
            body = self.receive()
        except ConnectionClosed:
            return True
        raise AssertionError(f"an answer instead of a closed connection: {body!r}")

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
