"""The pauses that the fault tests are judged by."""

from __future__ import annotations

import pytest

from cluster import longest_pause


def every(seconds: float, begin: float, end: float) -> list[float]:
    return [begin + seconds * number for number in range(int((end - begin) / seconds))]


@pytest.mark.parametrize(
    ("stands_still", "expected"),
    [((20.0, 21.5), 1.5), ((14.9, 15.4), 0.5), ((38.0, 99.0), 2.0), ((0.0, 99.0), 25.0)],
    ids=["in the middle", "when it began", "for good", "always"],
)
def test_one_partition_that_stands_still_is_seen_among_others(
    stands_still: tuple[float, float], expected: float
) -> None:
    times = {partition: every(0.01, 10, 50) for partition in range(4)}
    begin, end = stands_still
    times[2] = [moment for moment in times[2] if not begin < moment < end]
    assert longest_pause(times, 15, 40) == pytest.approx(expected, abs=0.03)
    del times[2]
    assert longest_pause(times, 15, 40) < 0.03
