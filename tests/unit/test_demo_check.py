"""The demo's verdict: it must be able to say no."""

from __future__ import annotations

from penstock.demo.check import OnceAndInOrder


def test_contiguous_batches_up_to_the_acknowledged_end_are_fine() -> None:
    check = OnceAndInOrder()
    check.batch(0, 0, 99, 100)
    check.batch(1, 0, 9, 10)
    check.batch(0, 100, 149, 50)
    check.finish({0: 150, 1: 10})
    assert check.problems == []
    assert check.records == 160


def test_a_gap_a_repetition_a_missing_record_and_a_missing_end_are_all_seen() -> None:
    check = OnceAndInOrder()
    check.batch(0, 0, 9, 10)
    check.batch(0, 11, 19, 9)
    check.batch(0, 15, 29, 15)
    check.batch(0, 30, 39, 9)
    check.finish({0: 41, 1: 5})
    assert [problem.split(": ", 1)[1] for problem in check.problems] == [
        "offsets 10 to 10 are missing",
        "offset 15 came again after 19",
        "9 records at offsets 30 to 39 (10)",
        "read up to 40, acknowledged up to 41",
        "read up to 0, acknowledged up to 5",
    ]
