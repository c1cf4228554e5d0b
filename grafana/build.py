"""Writes the dashboards to grafana/dashboards/: `python grafana/build.py`; `--check` only compares.

The JSON is committed, so that Grafana needs neither Python nor the SDK.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from boards.broker import broker
from boards.overview import overview
from boards.push_pull import push_pull
from boards.replication import replication
from boards.spark import spark

DASHBOARDS = Path(__file__).parent / "dashboards"
BOARDS = (overview, push_pull, broker, replication, spark)


def texts() -> dict[Path, str]:
    """Every file's name and what belongs in it."""
    made = {}
    for make in BOARDS:
        dashboard = make().build()
        name = str(dashboard.uid).removeprefix("penstock-")
        made[DASHBOARDS / f"{name}.json"] = (
            json.dumps(dashboard, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        )
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    check = parser.parse_args().check
    wanted = texts()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    stale += set(DASHBOARDS.glob("*.json")) - wanted.keys()
    if check:
        for path in stale:
            print(f"{path.name} is out of date: python grafana/build.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        if path in wanted:
            path.write_text(wanted[path])
        else:
            path.unlink()
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
