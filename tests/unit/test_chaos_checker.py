"""The checker of the fault tests, held against histories that are right and wrong in one way each."""

from __future__ import annotations

import pytest
from chaos.checker import check
from chaos.history import Event


def good() -> list[Event]:
    """Two producers, one partition: three records, all acknowledged, read by pull, push and at the end."""
    records = [[0, 0, 0], [1, 0, 0], [0, 0, 1]]
    return [
        ["led", 0, 1, 0, 5],
        ["acked", 1, 0, 0, 0, 0, 0],
        ["acked", 1, 1, 0, 1, 0, 0],
        ["acked", 1, 0, 0, 2, 0, 1],
        ["read", 2, "pull", 0, 0, 5, records[:2]],
        ["read", 3, "pull", 0, 2, 5, records[2:]],
        ["end", 3, "pull", 0, 3],
        ["read", 3, "push-0", 0, 0, 5, records],
        ["end", 3, "push-0", 0, 3],
        ["committing", 4, "group", 0, 2],
        ["committed", 4, "group", 0, 2],
        ["committing", 4, "group", 0, 3],
        ["resumed", 4, "group", 0, 3],
        ["sent", 5, 0, 0, 2],
        ["sent", 5, 1, 0, 1],
        ["read", 6, "final-1", 0, 0, 5, records],
        ["read", 6, "final-2", 0, 0, 5, records],
    ]


def test_a_history_without_fault_is_good() -> None:
    verdict = check(good)
    assert verdict.is_good, str(verdict)
    assert (verdict.acknowledged, verdict.in_the_log) == (3, 3)


def test_a_run_in_which_nothing_was_written_shows_nothing() -> None:
    assert not check(list).is_good


def test_a_record_that_failed_may_be_there_or_not_but_is_told() -> None:
    events = [event for event in good() if event[:2] != ["acked", 1] or event[2] != 1]
    events.append(["failed", 1, 1, 0, 0, "timed out"])
    assert set(check(lambda: events).violations) == {"failed"}


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (["acked", 1, 0, 0, 3, 0, 2], "lost"),
        (["acked", 1, 0, 0, -1, 0, 2], "lost"),
        (["acked", 1, 0, 0, 1, 0, 1], "lost"),  # there, but moved to another offset
        (["read", 7, "final-1", 0, 3, 5, [[0, 0, 1]]], "repeated"),
        (["read", 7, "final-1", 0, 3, 5, [[0, 0, 0]]], "disordered"),
        (["read", 7, "final-1", 0, 3, 5, [[1, 0, 2]]], "missing"),
        (["read", 7, "final-1", 0, 3, 5, [[1, 0, 1]]], "invented"),
        (["read", 7, "final-1", 0, 3, 4, [[1, 0, 1]]], "epochs"),
        (["read", 7, "final-3", 0, 1, 5, [[1, 0, 1]]], "ambiguous"),
        (["read", 7, "final-3", 0, 1, 6, [[1, 0, 0]]], "ambiguous"),
        (["read", 7, "late", 0, 1, 5, [[1, 0, 0]]], "gap"),
        (["end", 7, "late", 0, 2], "gap"),
        (["read", 7, "pull", 0, 2, 5, [[0, 0, 1]]], "reread"),
        (["read", 7, "late", 0, 0, 5, [[1, 0, 0]]], "phantom"),
        (["read", 7, "pull", 0, 3, 5, [[1, 0, 1]]], "phantom"),  # seen once, gone for ever
        (["read", 7, "late", 0, 0, 4, [[0, 0, 0]]], "phantom"),
        (["led", 7, 2, 0, 5], "led twice"),
        (["resumed", 7, "group", 0, 1], "offset"),
        (["resumed", 7, "group", 0, 4], "offset"),
        (["error", 7, "pull", "offset out of range"], "error"),
    ],
)
def test_every_way_to_break_the_promise_is_told(wrong: Event, kind: str) -> None:
    assert kind in check(lambda: [*good(), wrong]).violations
