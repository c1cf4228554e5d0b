"""What `make test` tries again, and what not: a record that was lost once is lost."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("failure", "is_tried_again"),
    [
        ("promised(False, 'partition 0 lost 1')", False),
        ("assert False, 'still 0 after 30 s'", True),
        ("raise RuntimeError('Violation: only says so')", True),
    ],
)
def test_only_a_verdict_on_records_is_final(tmp_path: Path, failure: str, is_tried_again: bool) -> None:
    """The test that it runs fails the first time only."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_once.py").write_text(
        "from pathlib import Path\n"
        "from harness import promised\n"
        "def test_once() -> None:\n"
        "    if not Path('tried').exists():\n"
        "        Path('tried').touch()\n"
        f"        {failure}\n"
    )
    (again,) = re.findall(r"^AGAIN := (.*)$", (TESTS.parent / "Makefile").read_text(), re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *shlex.split(again), "test_once.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == (0 if is_tried_again else 1), done.stdout + done.stderr
    assert ("1 rerun" in done.stdout) is is_tried_again
