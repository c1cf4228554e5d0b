"""Subscribing to what is not a Penstock broker: one clear exception each."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import free_port
from penstock.shm import layout
from penstock.shm.places import NotLocal, Place
from penstock.shm.reader import LogReader
from penstock.shm.subscribe import BrokerUnreachable, NotPenstock, PartitionRefused, subscribe

Serve = Callable[[bytes], str]


def _receive(connection: socket.socket) -> bytes:
    size = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
    return connection.recv(int(size), socket.MSG_WAITALL)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Listens, answers one request with given bytes, and hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))
    requests: list[bytes] = []

    def answer_with(content: bytes) -> str:
        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                requests.append(_receive(connection))
                connection.sendall(content)

        threading.Thread(target=answer, daemon=True).start()
        return "{}:{}".format(*listener.getsockname())

    yield answer_with
    listener.close()


def _frame(body: object) -> bytes:
    content = json.dumps(body).encode()
    return struct.pack(">iii", 8 + len(content), 1, len(content)) + content


def _answer(**changes: Any) -> dict[str, Any]:
    partition = {
        "topic": "t",
        "topicId": "ab" * 16,
        "partition": 2,
        "leaderEpoch": 4,
        "logStartOffset": 5,
        "highWatermark": 6,
        "directory": "/dev/shm/p/1/abab/2",
        "error": None,
    }
    return {
        "error": None,
        "brokerId": 1,
        "host": "here",
        "shmDir": "/dev/shm/nobody-has-this/1",
        "incarnation": 9,
        "layoutVersion": layout.VERSION,
        "heartbeatMs": 100,
        "partitions": [partition],
        **changes,
    }


def test_an_answer_becomes_a_subscription(serve: Serve) -> None:
    found = subscribe(serve(_frame(_answer())), {"t": [2]})
    assert found.places == (Place("t", b"\xab" * 16, 2),)
    assert (found.directory, found.incarnation) == (Path("/dev/shm/nobody-has-this/1"), 9)
    assert (found.partitions[0].log_start, found.partitions[0].high_watermark) == (5, 6)


def test_memory_of_another_machine_is_not_local(serve: Serve) -> None:
    with pytest.raises(NotLocal):
        LogReader.of(subscribe(serve(_frame(_answer())), {"t": None}))


def test_a_refused_partition_says_which_and_why(serve: Serve) -> None:
    refused = {"topic": "t", "partition": 3, "error": "unknown_topic_or_partition"}
    with pytest.raises(PartitionRefused, match="t-3: unknown_topic") as caught:
        subscribe(serve(_frame(_answer(partitions=[refused]))), {"t": [3]})
    assert caught.value.partition == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0",
        struct.pack(">i", 1 << 30),
        struct.pack(">i", -1),
        struct.pack(">iii", 8, 2, 0),
        struct.pack(">iii", 8, 1, 100),
        struct.pack(">iii", 8, 1, -1),
        struct.pack(">iii", 11, 1, 3) + b"xyz",
        _frame([]),
        _frame({}),
        _frame(_answer(layoutVersion=99)),
        _frame(_answer(partitions=[{"topic": "t"}])),
    ],
)
def test_what_is_not_an_answer_is_not_penstock(serve: Serve, content: bytes) -> None:
    with pytest.raises(NotPenstock):
        subscribe(serve(content), {"t": None})


def test_nobody_there_and_nobody_answering_are_unreachable() -> None:
    with pytest.raises(BrokerUnreachable, match="refused"):
        subscribe(f"127.0.0.1:{free_port()}", {"t": None})
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(BrokerUnreachable):
        subscribe("{}:{}".format(*silent.getsockname()), {"t": None}, timeout=0.1)
    with pytest.raises(ValueError, match="HOST:PORT"):
        subscribe("nowhere", {"t": None})
