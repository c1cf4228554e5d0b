"""What a native consumer, without Spark, does with the batches it pulls: Spark's queries in plain Python.

To iterate is to count what came by: batches say how many records they have, and none is decoded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Final

from penstock.wire.batch import read_header
from penstock.wire.records import Compression, decode_records

Visit = Callable[[memoryview], None]
"""Given each whole batch."""
_WORD: Final = b"penstock"
_WINDOW_SECONDS: Final = 5
_LATENESS_SECONDS: Final = 10


class Filter:
    def __init__(self) -> None:
        self.found: list[bytes] = []

    def __call__(self, batch: memoryview) -> None:
        # Of a batch as it was written, a search over all its bytes says that no record has the word.
        plain = read_header(batch).compression == Compression.NONE
        if plain and _WORD not in bytes(batch):
            return
        values = (record.value or b"" for record in decode_records(batch))
        self.found = [value for value in values if _WORD in value]


class WordCount:
    def __init__(self) -> None:
        self.counts: Counter[bytes] = Counter()

    def __call__(self, batch: memoryview) -> None:
        for record in decode_records(batch):
            self.counts.update((record.value or b"").split(b" "))


class WindowedWordCount:
    """Windows of five seconds, one begins every second; those that can't change any more are forgotten."""

    def __init__(self) -> None:
        self.windows: defaultdict[int, Counter[bytes]] = defaultdict(Counter)
        self._newest = 0

    def __call__(self, batch: memoryview) -> None:
        for record in decode_records(batch):
            words, second = (record.value or b"").split(b" "), record.timestamp // 1000
            for start in range(second - _WINDOW_SECONDS + 1, second + 1):
                self.windows[start].update(words)
            if second > self._newest:
                self._newest = second
                over = second - _LATENESS_SECONDS - _WINDOW_SECONDS
                for start in [start for start in self.windows if start <= over]:
                    del self.windows[start]


QUERIES: Final[dict[str, Callable[[], Visit] | None]] = {
    "pass": None,
    "count": None,
    "filter": Filter,
    "word-count": WordCount,
    "windowed-word-count": WindowedWordCount,
}
