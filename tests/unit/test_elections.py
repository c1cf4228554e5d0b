"""Every reason that replication gives for an election has a cause that metrics count it under."""

from __future__ import annotations

import pytest

from penstock.replication.elections import Cause, Election, Elections


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("first leader", Cause.FIRST),
        ("broker 2 restarted", Cause.RESTART),
        ("only replica, its log was lost in part", Cause.RESTART),
        ("broker 12 stops", Cause.HANDOVER),
        ("broker 1 is its preferred leader", Cause.HOME),
        ("broker 2 lost its lease", Cause.FAILOVER),
        ("broker 2 does not lead", Cause.FAILOVER),
        ("broker 2 lost its log", Cause.FAILOVER),
        ("broker 2 closed its connection", Cause.FAILOVER),
        ("broker 2 silent for 0.31 s", Cause.FAILOVER),
        ("no leader", Cause.FAILOVER),
        ("an operator gave up what broker 2 doesn't have", Cause.UNCLEAN),
        ("a backup had promised epoch 7", Cause.OTHER),
    ],
)
def test_reasons_have_causes(reason: str, cause: Cause) -> None:
    elections = Elections()
    assert set(elections.counts.values()) == {0}, (
        "all are there before anything happens: increase() needs a 0"
    )
    elections.note(Election(1.0, (b"t" * 16, 0), "t-0", 3, reason))
    assert elections.counts[cause] == 1
    assert sum(elections.counts.values()) == 1
