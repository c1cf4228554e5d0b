"""A writer killed at any instruction: rounds of SIGKILL in the middle of appends, rolls and recycling.

No broker and no sockets, so that a round is short and every kill lands in the log's own code. The reader
follows all the while, and must see every number once, in order, across all of the writer's lives.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from penstock.shm import layout
from penstock.shm.places import BrokerRestarted, Edge, Place
from penstock.shm.reader import LogReader

ROUNDS = 40
PER_BATCH = 7
PLACE = Place("t", bytes(range(16)), 0)

# Imports once and forks a writer for every line it is sent: a life is then a matter of milliseconds.
_WRITERS = """
import os, sys
from pathlib import Path
from penstock.log.config import LogConfig
from penstock.log.store import LogStore, PartitionPlace
from penstock.wire import batch
from penstock.wire.records import Record, encode_batch

memory, disk = map(Path, sys.argv[1:])

def write():
    store = LogStore(broker_id=1, memory_root=memory, disk_root=disk, memory_budget=2 << 20)
    config = LogConfig.parse({"segment.bytes": "32768"})
    (log,) = store.open([PartitionPlace("t", bytes(range(16)), 0, config, 0)])
    log.ceiling = 1 << 40
    print(os.getpid(), log.log_end, flush=True)
    while True:
        if store.pool.available > 1 << 17:
            for _ in range(20):
                values = [b"%050d" % number for number in range(log.log_end, log.log_end + 7)]
                encoded = encode_batch([Record(at, 0, None, value) for at, value in enumerate(values)])
                log.append(batch.check_produced(encoded, 1 << 20), encoded)
        # What the reader has finished with is recycled, as if it were on disk; nothing is taken from it.
        finished = min((slot.finished for slot in store.readers.slots()), default=0)
        for segment in [s for s in log.segments if s.is_hot and s.sealed and s.next_offset <= finished]:
            segment.flushed = segment.size
            log.evict(segment)
        store.pool.collect(store.readers.pins())

for _ in sys.stdin:
    writer = os.fork()
    if writer == 0:
        write()
    os.waitpid(writer, 0)
    print("dead", flush=True)
"""


class Writers:
    """Processes, one after the other, that append numbers as fast as they can."""

    def __init__(self, memory: Path, disk: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WRITERS, str(memory), str(disk)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._writer = 0

    def start(self) -> int:
        """Returns the end of the log that this life recovered."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self._writer, log_end = map(int, self._answer().split())
        return log_end

    def kill(self) -> None:
        os.kill(self._writer, signal.SIGKILL)
        assert self._answer() == "dead\n"
        self._writer = 0

    def close(self) -> None:
        if self._writer:
            self.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def _read(reader: LogReader, expected: int, limit: int | None) -> int:
    """Read on, up to `limit` records; returns the number that must come next."""
    for _, record in itertools.islice(reader.records(wait=0), limit):
        assert record.offset == expected
        assert record.value == b"%050d" % expected
        expected += 1
    return expected


def test_nothing_is_lost_repeated_or_torn_by_a_writer_killed_anywhere(tmp_path: Path) -> None:
    dice = random.Random(11)
    with tempfile.TemporaryDirectory(prefix="penstock-test-", dir="/dev/shm") as name:
        memory = Path(name)
        writers = Writers(memory, tmp_path)
        try:
            assert writers.start() == 0
            # Nobody beats the heart here, so the reader's clock stands still.
            reader = LogReader(layout.broker_dir(memory, 1), {PLACE: Edge.EARLIEST}, clock=lambda: 0.0)
            expected = 0
            for _ in range(ROUNDS):
                deadline = time.monotonic() + dice.uniform(0.0, 0.05)
                while time.monotonic() < deadline:
                    expected = _read(reader, expected, 500)
                writers.kill()
                expected = _read(reader, expected, None)
                # At most the one batch that was appended and not yet committed.
                assert writers.start() - expected in (0, PER_BATCH)
                with pytest.raises(BrokerRestarted):
                    _read(reader, expected, None)
                reader.reattach()
            reader.close()
            assert expected > ROUNDS * 100
        finally:
            writers.close()
