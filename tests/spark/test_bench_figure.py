"""A figure of the paper in its smallest form: Spark by push and by pull, and a native client."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from harness import PENSTOCK

pytestmark = pytest.mark.spark


def test_every_consumer_of_a_figure_reads_while_producers_write(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(*PENSTOCK, "bench", "figure", "4", "--chunk", "4KiB", "--clients", "1", "--memory", "512MiB"),
            *("--rate", "50000", "-s", "2", "-r", "1", "-o", "r.json", "--json"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["failures"] == []
    samples = {sample["contender"]: sample for sample in document["samples"]}
    assert set(samples) == {"push", "pull", "native pull"}
    for sample in samples.values():
        assert sample["producers_records_per_second"] > 0
        assert 0 < sample["consumed"] <= sample["produced"]
    assert samples["push"]["pushed_share"] == 1
    assert samples["pull"]["pushed"] == 0
