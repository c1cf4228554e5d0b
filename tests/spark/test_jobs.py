"""The jobs of spark-jobs/, run as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from topics import Topic

pytestmark = pytest.mark.spark

JOBS = Path(__file__).parents[2] / "spark-jobs"
NAMES = ["count", "filter", "word_count", "windowed_word_count", "route", "stateful", "replay"]


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(JOBS / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_every_job_explains_itself(name: str) -> None:
    text = run(name, "--help")
    assert "--source" in text
    assert "--mode" in text


def test_count_counts(new_topic: Callable[..., Topic]) -> None:
    topic = new_topic(2)
    topic.fill(1000)
    out = run("count", "--servers", topic.servers, "--topic", topic.name, "--once", "--master", "local[2]")
    assert out.count("|  500|") == 2


def test_replay_sums_up_minutes(new_topic: Callable[..., Topic]) -> None:
    topic = new_topic(2)
    topic.fill(120, timestamp=1_900_000_000_000)
    out = run(
        "replay", "--servers", topic.servers, "--topic", topic.name, "--since", "2030-03-17T17:46:40.020"
    )
    assert "|100 " in out
