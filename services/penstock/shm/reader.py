"""The push reader: a broker's log, read in place from shared memory, without a request.

Used by local consumers, the CLI and benchmarks. A `LogReader` follows partitions of one broker: it watches
their commit words, walks the segments that `layout.py` draws, and tells the broker through its cursor file
which segment it is in and how far it has come. It promises every committed record from its start on, once
and in order, or an exception that says from which offset to go on, and how:

    NotInMemory      the offset was evicted or deleted: pull from there, then `seek`
    Overwritten      and so was what `batches(copy=False)` handed out last: throw that away first
    Fenced           the partition is served elsewhere, or by nobody for now: ask for its leader
    Gone             the partition was deleted
    BrokerRestarted  another process serves this memory now: `reattach`
    BrokerGone       the broker stopped, or its heart did: `reattach` when it is back
    CorruptLog       the memory makes no sense

The reader keeps its offsets through all of them. Nothing here opens a socket; `subscribe.py` does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from penstock.shm.control import NodeControl
from penstock.shm.cursors import CursorFile
from penstock.shm.follower import Batch, Follower
from penstock.shm.idle import BackOff, IdleStrategy
from penstock.shm.places import BrokerGone, BrokerRestarted, Edge, Fenced, NotLocal, Overwritten, Place, Start
from penstock.wire import batch
from penstock.wire.records import Record

if TYPE_CHECKING:
    from penstock.shm.subscribe import Subscription

SILENCE: Final = 1.0
"""Seconds without a heartbeat (one every 100 ms) after which a broker counts as gone, by default."""
_TURN: Final = 64
"""Batches that one partition may give before it is the next one's turn."""
_RETRY_SECONDS: Final = 0.01


class LogReader:
    """Follows partitions of one broker. See the module for what it promises and how it ends."""

    def __init__(
        self,
        directory: Path,
        starts: Mapping[Place, Start],
        *,
        label: str = "penstock-python",
        idle: IdleStrategy | None = None,
        silence: float = SILENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Attach to the broker whose node.ctl is in `directory`.

        A reader that can ask another broker may be content with less `silence`: at worst it subscribes
        again, from the same offsets, to a broker that was only slow.
        """
        if not starts:
            raise ValueError("nothing to read")
        self._directory = directory
        self._label = label
        self._idle = idle or BackOff()
        self._silence = silence
        self._clock = clock
        self._followers = {place: Follower(directory, place) for place in starts}
        self._cursor: CursorFile | None = None
        self._incarnation = 0
        self._beat = 0
        self._beat_seen = 0.0
        self._attach()
        try:
            for place, start in starts.items():
                self._followers[place].start(start)
        except BaseException:
            self._drop_cursor()
            raise

    @classmethod
    def of(
        cls,
        subscription: Subscription,
        start: Start | Mapping[Place, Start] = Edge.LATEST,
        *,
        label: str = "penstock-python",
        idle: IdleStrategy | None = None,
        silence: float = SILENCE,
    ) -> Self:
        """Attach to what was subscribed to. Raises NotLocal if this machine doesn't share that memory."""
        try:
            found = NodeControl.open(subscription.directory).incarnation
        except (OSError, ValueError):
            found = None
        if found != subscription.incarnation:
            raise NotLocal(f"{subscription.directory} does not hold the memory of broker {subscription.host}")
        starts = start if isinstance(start, Mapping) else dict.fromkeys(subscription.places, start)
        return cls(subscription.directory, starts, label=label, idle=idle, silence=silence)

    # Reading

    def batches(self, *, wait: float = math.inf, copy: bool = False) -> Iterator[Batch]:
        """Committed batches, from every partition in turn, in order within each.

        Ends when nothing came for `wait` seconds: 0 reads what there is, the default follows for ever.
        Without `copy` a batch is the log itself, good until the next one is asked for; that is checked
        then (and by `close`), with Overwritten if it wasn't.
        """
        if self._cursor is None:
            raise RuntimeError("the reader is closed, or its last reattach() failed")
        quiet_since: float | None = None
        self._idle.reset()
        while self._followers:
            count = 0
            for follower in list(self._followers.values()):
                for _ in range(_TURN):
                    found = follower.take(copy=copy)
                    if found is None:
                        break
                    count += 1
                    yield found
                    if not copy:
                        follower.verify()
            if count:
                quiet_since = None
                self._idle.idle(count)
                continue
            now = self._clock()
            self._check_pulse(now)
            quiet_since = now if quiet_since is None else quiet_since
            if now - quiet_since >= wait:
                return
            self._idle.idle(0)

    def records(self, *, wait: float = math.inf) -> Iterator[tuple[Place, Record]]:
        """Committed records: each batch is copied, checked, decoded, and only then given out."""
        for found in self.batches(wait=wait, copy=True):
            follower = self._followers[found.place]
            follower.offset = found.start_offset
            assert isinstance(found.data, bytes)
            if not batch.read_header(found.data).is_control:
                for record in follower.decode(found.data, found.start_offset):
                    if record.offset >= found.start_offset:
                        follower.offset = record.offset + 1
                        yield found.place, record
            follower.offset = found.next_offset

    @property
    def positions(self) -> dict[Place, int]:
        """The next offset of every partition."""
        return {place: follower.offset for place, follower in self._followers.items()}

    @property
    def lag(self) -> dict[Place, int]:
        """How many offsets are committed and not read yet."""
        return {place: follower.lag for place, follower in self._followers.items()}

    def seek(self, place: Place, offset: int) -> None:
        """Go on from `offset`, for example behind what was pulled after NotInMemory."""
        self._followers[place].seek(offset)

    def leave(self, place: Place) -> None:
        """Stop following a partition."""
        follower = self._followers.pop(place)
        try:
            follower.verify()
        finally:
            follower.close()

    # Life

    def reattach(self, timeout: float = 0.0) -> None:
        """Go on, from the same offsets, after Fenced, BrokerRestarted or BrokerGone.

        Tries for `timeout` seconds, then raises what still stands in the way.
        """
        deadline = self._clock() + timeout
        while True:
            try:
                self._attach()
                return
            except (Fenced, BrokerGone, BrokerRestarted):
                if self._clock() >= deadline:
                    raise
                time.sleep(_RETRY_SECONDS)

    def close(self) -> None:
        """Give up cursor and pins. Raises Overwritten if what is still in use in place was overwritten."""
        followers, self._followers = self._followers, {}
        try:
            for follower in followers.values():
                follower.verify()
        finally:
            if self._cursor is not None:
                for follower in followers.values():
                    follower.close()
            self._drop_cursor()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Overwritten:
            if error is None:  # an error of the block's own is the better story
                raise

    def _attach(self) -> None:
        place, follower = next(iter(self._followers.items()))
        try:
            node = NodeControl.open(self._directory)
        except FileNotFoundError:
            raise BrokerGone(place, follower.offset, f"no node.ctl in {self._directory}") from None
        incarnation, beat = node.incarnation, node.heartbeat
        if incarnation == 0:
            raise BrokerGone(place, follower.offset, "the broker stopped")
        if (
            incarnation == self._incarnation
            and beat == self._beat
            and self._clock() - self._beat_seen > self._silence
        ):
            raise BrokerGone(place, follower.offset, "the broker's heart still stands still")
        self._drop_cursor()
        self._node, self._beat, self._beat_seen = node, beat, self._clock()
        self._cursor = CursorFile(self._directory, self._label, len(self._followers))
        try:
            for each in self._followers.values():
                each.attach(node, incarnation, self._cursor)
        except BaseException:
            self._drop_cursor()
            raise
        self._incarnation = incarnation

    def _check_pulse(self, now: float) -> None:
        if self._cursor is not None:
            self._cursor.beat()
        beat = self._node.heartbeat
        if beat != self._beat:
            self._beat, self._beat_seen = beat, now
        elif now - self._beat_seen > self._silence:
            place, follower = next(iter(self._followers.items()))
            silence = now - self._beat_seen
            raise BrokerGone(place, follower.offset, f"no heartbeat for {silence:.1f} s")

    def _drop_cursor(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()
