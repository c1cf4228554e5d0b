"""Whether every record came once and in order, judged by the offsets that each micro-batch reported."""

from __future__ import annotations


class OnceAndInOrder:
    """Fed with (partition, first, last, records) of each micro-batch; collects what is wrong."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.records = 0
        self._next: dict[int, int] = {}

    def batch(self, partition: int, first: int, last: int, records: int) -> None:
        expected = self._next.get(partition, 0)
        if first < expected:
            self.problems.append(f"partition {partition}: offset {first} came again after {expected - 1}")
        elif first > expected:
            self.problems.append(f"partition {partition}: offsets {expected} to {first - 1} are missing")
        if records != last - first + 1:
            self.problems.append(
                f"partition {partition}: {records} records at offsets {first} to {last} ({last - first + 1})"
            )
        self._next[partition] = last + 1
        self.records += records

    def finish(self, ends: dict[int, int]) -> None:
        """Compare with what the broker acknowledged: the high watermark of each partition."""
        for partition, end in ends.items():
            if self._next.get(partition, 0) != end:
                self.problems.append(
                    f"partition {partition}: read up to {self._next.get(partition, 0)}, "
                    f"acknowledged up to {end}"
                )
