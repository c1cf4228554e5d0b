"""A broker double for the connector's tests: it lays out memory by hand, so that it can lie.

It answers just what the connector asks (ApiVersions, Metadata, ListOffsets, Fetch, Subscribe), for one
topic. The real broker serves all other tests.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import socketserver
import struct
import threading
import time
from pathlib import Path
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from penstock.shm import layout

BROKER = 7
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def batch(
    base: int,
    values: list[bytes | None],
    *,
    keys: list[bytes | None] | None = None,
    timestamp: int = 1_700_000_000_000,
    headers: list[tuple[str, bytes | None]] | None = None,
    codec: str = "none",
) -> bytes:
    """A version 2 record batch as a producer would send it, with its base offset patched in."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=CODECS[codec],
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 26,
    )
    for i, value in enumerate(values):
        key = keys[i] if keys else None
        builder.append(i, timestamp + i, key, value, headers or [])
    return struct.pack(">q", base) + bytes(builder.build())[8:]


class SharedFile:
    """A mapped file whose words are stored as the broker stores them."""

    def __init__(self, path: Path, size: int, magic: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        with path.open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            self.memory = mmap.mmap(file.fileno(), size)
        self.words = memoryview(self.memory).cast("q")
        self.memory[0 : len(magic)] = magic

    def __setitem__(self, at: int, value: int) -> None:
        self.words[at // layout.WORD] = value

    def __getitem__(self, at: int) -> int:
        return self.words[at // layout.WORD]


class TinyPartition:
    def __init__(self, broker_dir: Path, topic_id: bytes, number: int, incarnation: int) -> None:
        self.directory = layout.partition_dir(broker_dir, topic_id, number)
        self.topic_id, self.number = topic_id, number
        self.batches: list[tuple[int, bytes]] = []
        self.log_start = 0
        self.end = 0
        self.segments: dict[int, SharedFile] = {}
        self.control = SharedFile(self.directory / layout.PART_FILE, layout.PART_SIZE, layout.PART_MAGIC)
        control = self.control
        control[layout.PART_VERSION] = layout.VERSION
        control.memory[layout.PART_TOPIC : layout.PART_TOPIC + 16] = topic_id
        control[layout.PART_PARTITION] = number
        control[layout.PART_INCARNATION] = incarnation
        control[layout.PART_OLDEST] = control[layout.PART_NEWEST] = -1
        control[layout.PART_STATE] = layout.PartitionState.LIVE

    def roll(self, size: int = 1 << 20) -> SharedFile:
        """Begins a new segment at the log's end."""
        base = self.end
        segment = SharedFile(self.directory / layout.segment_name(base), size, layout.SEGMENT_MAGIC)
        segment[layout.SEGMENT_GENERATION] = 2
        segment.memory[layout.SEGMENT_TOPIC : layout.SEGMENT_TOPIC + 16] = self.topic_id
        segment[layout.SEGMENT_PARTITION] = self.number
        segment[layout.SEGMENT_BASE] = base
        segment[layout.SEGMENT_NEXT] = -1
        if self.segments:
            self.segments[max(self.segments)][layout.SEGMENT_NEXT] = base
        else:
            self.control[layout.PART_OLDEST] = base
        self.segments[base] = segment
        self.control[layout.PART_NEWEST] = base
        return segment

    def append(self, raw: bytes, *, in_memory: bool = True) -> None:
        """Appends a batch, whose base offset must be the log's end, or behind it to leave a gap."""
        base, last_delta = struct.unpack_from(">q", raw)[0], struct.unpack_from(">i", raw, 23)[0]
        self.batches.append((base, raw))
        if in_memory:
            if not self.segments:
                self.roll()
            segment = self.segments[max(self.segments)]
            at = layout.SEGMENT_HEADER + segment[layout.SEGMENT_WRITTEN]
            if at + len(raw) > len(segment.memory):
                segment = self.roll()
                at = layout.SEGMENT_HEADER
            segment.memory[at : at + len(raw)] = raw
            segment[layout.SEGMENT_WRITTEN] += len(raw)
        self.end = base + last_delta + 1
        self.control[layout.PART_COMMIT] = self.end

    def evict(self, base: int) -> None:
        """Takes a segment's memory away, as the broker does with one that nobody has pinned."""
        segment = self.segments.pop(base)
        segment[layout.SEGMENT_GENERATION] += 2
        segment.path.unlink()
        self.control[layout.PART_OLDEST] = min(self.segments, default=-1)


class TinyBroker:
    def __init__(self, root: Path, topic: str, partitions: int = 1) -> None:
        self.topic, self.topic_id = topic, os.urandom(16)
        self.directory = layout.broker_dir(root, BROKER)
        self.directory.mkdir(parents=True)
        (self.directory / layout.CURSOR_DIR).mkdir()
        self.incarnation = time.time_ns()
        self.node = SharedFile(self.directory / layout.NODE_FILE, layout.NODE_SIZE, layout.NODE_MAGIC)
        self.node[layout.NODE_VERSION] = layout.VERSION
        self.node[layout.NODE_BROKER] = BROKER
        self.node[layout.NODE_INCARNATION] = self.incarnation
        self.partitions = [
            TinyPartition(self.directory, self.topic_id, number, self.incarnation)
            for number in range(partitions)
        ]
        self.offers_push = True
        self.fetches = 0
        self.stopping = threading.Event()
        broker = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                broker.serve(self.request)

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        threading.Thread(target=self.beat, daemon=True).start()

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def beat(self) -> None:
        while not self.stopping.wait(0.1):
            self.node[layout.NODE_HEARTBEAT] += 1

    def close(self) -> None:
        self.stopping.set()
        self.server.shutdown()
        self.server.server_close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def serve(self, socket: Any) -> None:
        stream = socket.makefile("rb")
        while head := stream.read(4):
            frame = stream.read(struct.unpack(">i", head)[0])
            key, _version, correlation, client = struct.unpack_from(">hhih", frame)
            body = frame[10 + max(0, client) :]
            answer = {
                18: self.api_versions,
                3: self.metadata,
                2: self.list_offsets,
                1: self.fetch,
                20001: self.subscribe,
            }[key](body)
            socket.sendall(struct.pack(">ii", len(answer) + 4, correlation) + answer)

    def api_versions(self, _body: bytes) -> bytes:
        offered = {0: 7, 1: 10, 2: 2, 3: 7, 18: 0} | ({20001: 0} if self.offers_push else {})
        return struct.pack(">hi", 0, len(offered)) + b"".join(
            struct.pack(">hhh", key, 0, most) for key, most in offered.items()
        )

    def metadata(self, _body: bytes) -> bytes:
        host = text("127.0.0.1")
        out = struct.pack(">iii", 0, 1, BROKER) + host + struct.pack(">ih", self.port, -1)
        out += (
            struct.pack(">hiih", -1, BROKER, 1, 0)
            + text(self.topic)
            + struct.pack(">bi", 0, len(self.partitions))
        )
        for number in range(len(self.partitions)):
            out += struct.pack(">hiiiiiiii", 0, number, BROKER, 0, 1, BROKER, 1, BROKER, 0)
        return out

    def list_offsets(self, body: bytes) -> bytes:
        length = struct.unpack_from(">h", body, 9)[0]
        at = 11 + length
        count = struct.unpack_from(">i", body, at)[0]
        out = struct.pack(">ii", 0, 1) + text(self.topic) + struct.pack(">i", count)
        for i in range(count):
            number, stamp = struct.unpack_from(">iq", body, at + 4 + 12 * i)
            partition = self.partitions[number]
            # It has no index of time: any time may be the first record's.
            offset = partition.end if stamp == -1 else partition.log_start
            out += struct.pack(">ihqq", number, 0, -1, offset)
        return out

    def fetch(self, body: bytes) -> bytes:
        self.fetches += 1
        length = struct.unpack_from(">h", body, 29)[0]
        number, _epoch, offset = struct.unpack_from(">iiq", body, 31 + length + 4)
        partition = self.partitions[number]
        error = 1 if offset < partition.log_start or offset > partition.end else 0
        found = [
            raw for base, raw in partition.batches if base + struct.unpack_from(">i", raw, 23)[0] >= offset
        ]
        records = b"" if error else b"".join(found)[: 1 << 20]
        if not records:
            time.sleep(0.05)
        head = struct.pack(">ihii", 0, 0, 0, 1) + text(self.topic) + struct.pack(">i", 1)
        end = partition.end
        return (
            head
            + struct.pack(">ihqqqii", number, error, end, end, partition.log_start, 0, len(records))
            + records
        )

    def subscribe(self, body: bytes) -> bytes:
        asked = json.loads(body[4:])
        numbers = [number for topic in asked["topics"] for number in topic["partitions"]]
        answer = {
            "error": None,
            "brokerId": BROKER,
            "host": "127.0.0.1",
            "shmDir": str(self.directory),
            "incarnation": self.incarnation,
            "layoutVersion": layout.VERSION,
            "heartbeatMs": 100,
            "partitions": [
                {
                    "topic": self.topic,
                    "topicId": self.topic_id.hex(),
                    "partition": number,
                    "leaderEpoch": 0,
                    "logStartOffset": self.partitions[number].log_start,
                    "highWatermark": self.partitions[number].end,
                    "directory": str(self.partitions[number].directory),
                    "error": None,
                }
                for number in numbers
            ],
        }
        raw = json.dumps(answer).encode()
        return struct.pack(">i", len(raw)) + raw


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()
