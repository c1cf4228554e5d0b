"""`penstock.spark.session`, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
from penstock.spark import session
spark = session("log", "local[1]", **{"spark.ui.showConsoleProgress": False})
spark._jvm.org.slf4j.LoggerFactory.getLogger("probe").warn("a line to find")
"""


@pytest.mark.parametrize("as_json", [True, False])
def test_a_driver_logs_json_if_told_to(as_json: bool) -> None:
    environment = os.environ | {"PENSTOCK_LOG_JSON": str(as_json).lower()}
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120
    )
    assert program.returncode == 0, program.stderr
    (line,) = (line for line in program.stderr.splitlines() if "a line to find" in line)
    if as_json:
        told = json.loads(line)
        assert (told["level"], told["msg"]) == ("WARN", "a line to find")
    else:
        assert not line.startswith("{")
