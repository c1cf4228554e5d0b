"""The verdict on a history: nothing acknowledged lost, repeated or moved; nobody read what is not there.

A pure function. The final log, as read from each broker in turn when all was over, is the truth that every
acknowledgement and every reader is held against; `history.py` says what the events are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from chaos.history import Event

FINAL = "final"
"""Readers with this prefix read the whole log at the end."""
_EXAMPLES = 5

Record = tuple[int, int, int]
"""Producer, key, number."""


@dataclass(slots=True)
class Verdict:
    acknowledged: int = 0
    in_the_log: int = 0
    read: int = 0
    """Records, summed over all readers."""
    violations: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not self.violations and self.in_the_log > 0

    def note(self, kind: str, what: str) -> None:
        self.violations[kind] += 1
        told = self.examples.setdefault(kind, [])
        if len(told) < _EXAMPLES:
            told.append(what)

    def __str__(self) -> str:
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(self.violations.items())) or "none"
        head = (
            f"{'GOOD' if self.is_good else 'BAD'}: {self.acknowledged} acknowledged, "
            f"{self.in_the_log} in the log, {self.read} read; violations: {found}"
        )
        return "\n".join([head, *(f"  {k}: {e}" for k, told in self.examples.items() for e in told)])


def check(history: Callable[[], Iterable[Event]]) -> Verdict:
    """`history` gives all events, as often as it is called."""
    verdict = Verdict()
    log = _Log()
    for event in history():
        if event[0] == "read" and event[2].startswith(FINAL):
            log.take(verdict, event)
    log.check_order(verdict, history)
    verdict.in_the_log = sum(len(each) for each in log.records.values())
    _Followed(log).check(verdict, history)
    _check_leaders(verdict, history)
    _check_groups(verdict, history)
    return verdict


class _Log:
    """The final log, by partition: record and epoch at each offset."""

    def __init__(self) -> None:
        self.records: dict[int, dict[int, Record]] = defaultdict(dict)
        self.epochs: dict[int, dict[int, int]] = defaultdict(dict)

    def take(self, verdict: Verdict, event: Event) -> None:
        _, _, reader, partition, offset, epoch, records = event
        for at, record in enumerate(records, offset):
            known = self.records[partition].setdefault(at, tuple(record))
            if known != tuple(record):
                verdict.note("ambiguous", f"{partition}/{at}: {known}, but {record} for {reader}")
            if self.epochs[partition].setdefault(at, epoch) != epoch:
                verdict.note("ambiguous", f"{partition}/{at}: epoch {epoch} for {reader}")

    def check_order(self, verdict: Verdict, history: Callable[[], Iterable[Event]]) -> None:
        """Each record once; in order per key, without a hole; epochs only grow."""
        doubtful: set[Record] = set()
        sent: dict[tuple[int, int], int] = {}
        for event in history():
            if event[0] == "failed":
                doubtful.add((event[2], event[3], event[4]))
                verdict.note("failed", f"{event[2:]}")
            elif event[0] == "sent":
                sent[event[2], event[3]] = event[4]
        last: dict[tuple[int, int], int] = defaultdict(lambda: -1)
        for partition, records in self.records.items():
            epoch = -1
            for at in sorted(records):
                producer, key, number = records[at]
                before = last[producer, key]
                if number == before:
                    verdict.note("repeated", f"{partition}/{at}: {records[at]}")
                elif number < before:
                    verdict.note("disordered", f"{partition}/{at}: {records[at]} after {before}")
                elif any((producer, key, each) not in doubtful for each in range(before + 1, number)):
                    verdict.note("missing", f"{partition}/{at}: {records[at]} after {before}")
                if number >= sent.get((producer, key), number + 1):
                    verdict.note("invented", f"{partition}/{at}: {records[at]} was never sent")
                last[producer, key] = max(before, number)
                if self.epochs[partition][at] < epoch:
                    verdict.note("epochs", f"{partition}/{at}: {self.epochs[partition][at]} after {epoch}")
                epoch = self.epochs[partition][at]


class _Followed:
    """Acknowledgements and readers against the final log."""

    def __init__(self, log: _Log) -> None:
        self._log = log
        self._next: dict[tuple[str, int], int] = {}

    def check(self, verdict: Verdict, history: Callable[[], Iterable[Event]]) -> None:
        unplaced: set[Record] = set()
        for event in history():
            kind = event[0]
            if kind == "acked":
                _, _, producer, partition, offset, key, number = event
                verdict.acknowledged += 1
                record = (producer, key, number)
                if offset < 0:  # acknowledged as a duplicate, where Kafka tells no offset
                    unplaced.add(record)
                elif (found := self._log.records[partition].get(offset)) != record:
                    verdict.note("lost", f"{partition}/{offset}: {record} acknowledged, {found} there")
            elif kind == "begin":
                self._next[event[2], event[3]] = event[4]
            elif kind == "read":
                self._read(verdict, event)
            elif kind == "end":
                _, _, reader, partition, offset = event
                end = max(self._log.records[partition], default=-1) + 1
                if offset != end:
                    verdict.note("gap", f"{reader} ended at {partition}/{offset}, the log at {end}")
            elif kind == "error":
                verdict.note("error", f"{event[2]}: {event[3]}")
        for records in self._log.records.values():
            unplaced.difference_update(records.values())
        for record in unplaced:
            verdict.note("lost", f"{record} acknowledged, nowhere there")

    def _read(self, verdict: Verdict, event: Event) -> None:
        _, _, reader, partition, offset, epoch, records = event
        verdict.read += len(records)
        expected = self._next.get((reader, partition), 0)
        if offset > expected:
            verdict.note("gap", f"{reader}: {partition}/{offset} after {expected - 1}")
        elif offset < expected:
            verdict.note("reread", f"{reader}: {partition}/{offset} after {expected - 1}")
        self._next[reader, partition] = offset + len(records)
        for at, record in enumerate(records, offset):
            found = self._log.records[partition].get(at)
            if found != tuple(record):
                verdict.note("phantom", f"{reader}: {partition}/{at} was {record}, is {found}")
            elif self._log.epochs[partition][at] != epoch:
                verdict.note("phantom", f"{reader}: {partition}/{at} was of epoch {epoch}")


def _check_leaders(verdict: Verdict, history: Callable[[], Iterable[Event]]) -> None:
    """One process leads a partition in one epoch, whatever it commits there."""
    led: dict[tuple[int, int], int] = {}
    for event in history():
        if event[0] == "led":
            _, _, broker, partition, epoch = event
            if (partition, epoch) in led:
                verdict.note(
                    "led twice", f"{partition} in epoch {epoch}: {led[partition, epoch]} and {broker}"
                )
            led[partition, epoch] = broker


def _check_groups(verdict: Verdict, history: Callable[[], Iterable[Event]]) -> None:
    """A group goes on from its last acknowledged commit, or from a later one that it heard nothing of."""
    acknowledged: dict[tuple[str, int], int] = {}
    attempted: dict[tuple[str, int], int] = {}
    for event in history():
        if event[0] == "committing":
            attempted[event[2], event[3]] = event[4]
        elif event[0] == "committed":
            acknowledged[event[2], event[3]] = event[4]
        elif event[0] == "resumed":
            _, _, group, partition, offset = event
            low = acknowledged.get((group, partition), 0)
            high = max(low, attempted.get((group, partition), 0))
            if not low <= offset <= high:
                verdict.note("offset", f"{group}: {partition} resumed at {offset}, committed {low} to {high}")
