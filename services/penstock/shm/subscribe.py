"""Asking a broker where its shared memory is: the one request that a local reader ever makes.

`subscribe` blocks, opens its own connection and closes it again. What comes back is all that `LogReader`
needs. The request is Penstock's own (API 20001), JSON in a Kafka frame; `broker/subscribe.py` answers it.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.shm import layout
from penstock.shm.places import Place
from penstock.wire.apis import ApiKey

_API_VERSION: Final = 0
_CORRELATION: Final = 1
_HEAD: Final = struct.Struct(">hhih")
_INT32: Final = struct.Struct(">i")
_LARGEST_ANSWER: Final = 64 << 20
DEFAULT_TIMEOUT: Final = 10.0


class SubscribeFailed(Exception):
    """There is no subscription; the text says why and for which broker."""


class BrokerUnreachable(SubscribeFailed):
    """No connection, or it broke or fell silent before the answer was whole."""


class NotPenstock(SubscribeFailed):
    """Whoever listens there does not speak this API, or another version of it."""


class PartitionRefused(SubscribeFailed):
    """The broker does not serve one of the partitions. `error` is Kafka's name for the reason."""

    def __init__(self, topic: str, partition: int, error: str) -> None:
        super().__init__(f"{topic}-{partition}: {error}")
        self.topic = topic
        self.partition = partition
        self.error = error


@dataclass(frozen=True, slots=True)
class SubscribedPartition:
    place: Place
    leader_epoch: int
    log_start: int
    high_watermark: int
    directory: Path


@dataclass(frozen=True, slots=True)
class Subscription:
    """Where a broker keeps its log in memory, and which of its processes said so."""

    broker_id: int
    host: str
    directory: Path
    """Holds node.ctl."""
    incarnation: int
    heartbeat_seconds: float
    partitions: tuple[SubscribedPartition, ...]

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(partition.place for partition in self.partitions)


def subscribe(
    address: str,
    topics: Mapping[str, Sequence[int] | None],
    timeout: float = DEFAULT_TIMEOUT,
    *,
    session: str = "",
) -> Subscription:
    """Subscribe to partitions of topics (None: all of them) at HOST:PORT. Raises SubscribeFailed."""
    wanted = [
        {"topic": topic} if partitions is None else {"topic": topic, "partitions": list(partitions)}
        for topic, partitions in topics.items()
    ]
    request = json.dumps({"session": session, "topics": wanted}).encode()
    answer = _exchange(address, request, timeout)
    try:
        body = json.loads(answer)
        if body["error"] is not None:
            raise SubscribeFailed(f"{address}: {body['error']}")
        if body["layoutVersion"] != layout.VERSION:
            raise NotPenstock(
                f"{address} has layout version {body['layoutVersion']}, this program reads version "
                f"{layout.VERSION}: run the same release of Penstock on both sides"
            )
        return Subscription(
            int(body["brokerId"]),
            str(body["host"]),
            Path(body["shmDir"]),
            int(body["incarnation"]),
            body["heartbeatMs"] / 1000,
            tuple(_partition(entry) for entry in body["partitions"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise NotPenstock(f"{address}: an answer that makes no sense: {error!r}") from None


def _partition(entry: Mapping[str, Any]) -> SubscribedPartition:
    topic, partition = str(entry["topic"]), int(entry["partition"])
    if entry["error"] is not None:
        raise PartitionRefused(topic, partition, str(entry["error"]))
    return SubscribedPartition(
        Place(topic, bytes.fromhex(entry["topicId"]), partition),
        int(entry["leaderEpoch"]),
        int(entry["logStartOffset"]),
        int(entry["highWatermark"]),
        Path(entry["directory"]),
    )


def _exchange(address: str, body: bytes, timeout: float) -> bytes:
    """One request, one response, on a connection of its own, within `timeout` in all."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit():
        raise ValueError(f"{address!r} is not HOST:PORT")
    deadline = time.monotonic() + timeout
    client = b"penstock-reader"
    head = _HEAD.pack(ApiKey.SUBSCRIBE, _API_VERSION, _CORRELATION, len(client)) + client
    frame = head + _INT32.pack(len(body)) + body
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout) as connection:
            connection.sendall(_INT32.pack(len(frame)) + frame)
            size = _INT32.unpack(_receive(connection, 4, deadline))[0]
            if not 8 <= size <= _LARGEST_ANSWER:
                raise NotPenstock(f"{address}: a response of {size} bytes")
            response = _receive(connection, size, deadline)
    except _Closed:
        # Kafka's own answer to an API that it doesn't know is to hang up.
        raise NotPenstock(f"{address} closed the connection: is it a Penstock broker?") from None
    except OSError as error:
        raise BrokerUnreachable(f"{address}: {error}") from None
    correlation, length = struct.unpack_from(">ii", response)
    if correlation != _CORRELATION or not 0 <= length <= size - 8:
        raise NotPenstock(f"{address}: not a response to the request")
    return response[8 : 8 + length]


class _Closed(Exception):
    pass


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        connection.settimeout(left)
        chunk = connection.recv(min(size - len(received), 1 << 20))
        if not chunk:
            raise _Closed
        received += chunk
    return bytes(received)
