"""A producer that keeps to a rate: each request leaves when it is due and carries that time.

Run as `python -m penstock.bench.pacing ADDRESS TOPIC PARTITIONS RATE SECONDS`; the records are ad events.
One that falls behind goes on with what is overdue, and its records carry the time at which they should have
left, so that a broker that holds it up shows in the latency. Prints JSON.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from typing import Any, Final

from penstock.load.chunks import ChunkRequest, different, make_chunk
from penstock.load.content import ad_events
from penstock.wire.errors import ErrorCode
from penstock.wire.records import Compression

_TICKS_PER_SECOND: Final = 100
_LENGTH: Final = struct.Struct(">i")
_ROOM: Final = 40
"""Bytes of a record besides the smallest event, and of the batch's header shared by its records."""


def _requests(topic: str, partitions: int, rate: float) -> list[ChunkRequest]:
    """Made before the clock starts, with the same number of records each."""
    values = ad_events()
    size = len(next(values))
    each = max(1, round(rate / _TICKS_PER_SECOND / partitions))
    wanted = different(each * (size + _ROOM) * partitions)
    chunks = [make_chunk(each * (size + _ROOM), size, Compression.NONE, values) for _ in range(wanted)]
    return [ChunkRequest(topic, range(partitions), chunk, records, acks=1) for chunk, records in chunks]


def produce(address: str, topic: str, partitions: int, rate: float, seconds: float) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    requests = _requests(topic, partitions, rate)
    gap = requests[0].records / rate
    latest = 0.0
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = connection.makefile("rb")
        start = time.time()
        count = max(1, int(seconds / gap))
        for number in range(count):
            due = start + number * gap
            early = due - time.time()
            if early > 0:
                time.sleep(early)
            latest = max(latest, -early)
            request = requests[number % len(requests)]
            connection.sendall(request.stamped(number + 1, int(due * 1000)))
            size = answers.read(_LENGTH.size)
            answer = bytearray(size + answers.read(_LENGTH.unpack(size)[0]))
            refused = request.first_error(answer, 0)
            if refused is not None:
                raise SystemExit(f"partition {refused[0]} refused its chunk: {ErrorCode(refused[1]).name}")
        return {
            "records": count * requests[0].records,
            "seconds": time.time() - start,
            "latest_ms": 1000 * latest,
        }


if __name__ == "__main__":
    where, name, parts, wanted, length = sys.argv[1:]
    print(json.dumps(produce(where, name, int(parts), float(wanted), float(length))))
