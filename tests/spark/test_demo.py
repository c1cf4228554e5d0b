"""`penstock demo` as a new user runs it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_demo_ends_well_and_leaves_nothing_behind() -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "demo", "--seconds", "4", "--rate", "20000"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert "every one arrived exactly once and in order" in result.stdout
    assert "push" in result.stdout
    assert "pull" in result.stdout
