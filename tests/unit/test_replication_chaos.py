"""Random faults on a simulated cluster, a few seconds of it; `make simulate` plays as many as one likes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from schedules import play
from simulation import interpreted

from penstock.replication import link, sabotage
from penstock.replication.leadership import Leadership

SEEDS = int(os.environ.get("SIM_SEEDS", "60"))
FIRST = int(os.environ.get("SIM_FIRST", "0"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_acknowledged_records_survive_any_schedule(seed: int) -> None:
    play(seed)


def test_a_seed_is_one_schedule() -> None:
    """What fails can be played again."""
    first, second = play(3), play(3)
    assert len(first.acknowledged) > 40
    assert first.acknowledged == second.acknowledged
    assert first.keys.values == second.keys.values


# Tests of the test: a cluster that breaks a rule is caught.


def caught(seeds: int = 200) -> bool:
    for seed in range(1000, 1000 + seeds):
        try:
            play(seed)
        except AssertionError as error:
            if "not within" not in str(error):
                return True
    return False


@pytest.mark.skipif("PENSTOCK_PURE" in os.environ, reason="once is enough, and faster compiled")
@pytest.mark.parametrize("rule", sorted(sabotage.RULES))
def test_a_build_without_a_rule_is_caught(rule: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import test_replication_chaos as t; raise SystemExit(not t.caught(400))"],
        cwd=Path(__file__).parent,
        env={**os.environ, "PENSTOCK_BREAK": rule},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@interpreted
def test_acknowledging_before_the_backups_have_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def eager(self: Leadership) -> None:
        self.log.short_of_replicas = False
        self.log.commit(self.log.log_end)

    monkeypatch.setattr(Leadership, "advance", eager)
    monkeypatch.setattr(Leadership, "appended", eager)
    assert caught()


@interpreted
def test_counting_an_old_tail_as_new_records_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "common_prefix", lambda log, epochs, end: end)
    assert caught()
