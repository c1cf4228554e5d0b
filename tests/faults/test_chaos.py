"""Faults of every kind from a seed, on real processes in network namespaces, under the checker's eyes.

Where there are no namespaces all of it is on the loopback, with proxies in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etcd import needs_etcd
from harness import promised

pytestmark = needs_etcd

TESTS = Path(__file__).resolve().parent.parent
KEPT = TESTS.parent / "artifacts" / "chaos"
MINUTES = os.environ.get("CHAOS_MINUTES", "3")
SEED = os.environ.get("CHAOS_SEED", "1")
OF_TIME = {"stuck", "failed", "error"}
"""Violations that a machine short of CPU can bring about; all others are about records."""


def chaos(out: Path, *words: str, **environment: str) -> Any:
    """Run it; returns what it found."""
    done = subprocess.run(
        [sys.executable, "-m", "chaos", "--out", str(out), *words],
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS / 'faults'}", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(done.stdout)
    out.mkdir(parents=True, exist_ok=True)
    (out / "printed.txt").write_text(done.stdout)
    assert (out / "verdict.json").exists(), done.stdout[-3000:]
    return json.loads((out / "verdict.json").read_text())


def judge(found: Any) -> None:
    told = (found["violations"], found["examples"])
    promised(found["violations"].keys() <= OF_TIME, told)
    assert found["good"], told


@contextlib.contextmanager
def kept_if_it_fails(out: Path) -> Iterator[Path]:
    """A test that fails may be run again, and its directory is gone then: what was found is worth more."""
    try:
        yield out
    except BaseException:
        shutil.copytree(out, KEPT / f"failed-{time.strftime('%Y%m%d-%H%M%S')}", dirs_exist_ok=True)
        raise


@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_repeated_or_moved_and_nobody_reads_what_is_not_there(
    tmp_path: Path,
) -> None:
    with kept_if_it_fails(tmp_path / "run") as out:
        found = chaos(out, "--minutes", MINUTES, "--seed", SEED)
        judge(found)
        assert found["acknowledged"] > 1000


@pytest.mark.timeout(300)
def test_the_same_with_proxies_for_a_network(tmp_path: Path) -> None:
    only = ("one way", "etcd one way", "unplug", "delay", "loss")
    words = ("--ground", "proxies", "--rounds", str(len(only)), "--alone", "--seed", SEED)
    with kept_if_it_fails(tmp_path / "run") as out:
        found = chaos(out, *words, *(f"--only={kind}" for kind in only))
        judge(found)
        assert found["rounds"] == len(only)


@pytest.mark.timeout(300)
def test_a_build_that_acknowledges_before_its_backup_has_the_data_is_caught(tmp_path: Path) -> None:
    """Other broken rules need more luck than two rounds; tests/unit/test_replication*.py hold each."""
    words = ("--rounds", "2", "--only", "isolate", "--role", "leader", "--patience", "20", "--alone")
    found = chaos(tmp_path / "run", *words, PENSTOCK_BREAK="ack-before-backup")
    assert not found["good"]
    assert {"lost", "phantom"} & found["violations"].keys(), found["violations"]
