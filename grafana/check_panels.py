"""Runs every query of every dashboard against a real Prometheus: `check_panels.py --prometheus URL`.

Prints each panel with its current values. Exits with 1 if one has no data, if a metric it names does not
exist (a figure that is 0 until something happens would hide a wrong name), or if a query is refused.
Needs nothing but Python: it reads the committed JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DASHBOARDS = Path(__file__).parent / "dashboards"
OURS = re.compile(r"\b(?:penstock|process|metrics_executor)_\w+|\bup\b")
SHOWN = 3
"""Series printed of each query."""


class Refused(Exception):
    """Prometheus could not make sense of a query, or could not be reached."""


class Prometheus:
    def __init__(self, url: str, window: str) -> None:
        self._url = url.rstrip("/")
        self._window = window

    def names(self) -> set[str]:
        """All metrics there are, those included that are announced and have no series yet."""
        announced = self._get("/api/v1/metadata", {})
        endings = ("", "_total", "_bucket", "_count", "_sum")
        return {name + ending for name in announced for ending in endings} | set(
            self._get("/api/v1/label/__name__/values", {})
        )

    def values(self, query: str) -> list[tuple[dict[str, str], float]]:
        """The series of a query now, its variables standing for everything."""
        query = query.replace("$__rate_interval", self._window)
        query = re.sub(r"\$(cluster|topic|query)\b", ".*", query)
        found = self._get("/api/v1/query", {"query": query})["result"]
        return [(series["metric"], float(series["value"][1])) for series in found]

    def _get(self, path: str, parameters: dict[str, str]) -> Any:
        address = f"{self._url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise Refused(json.load(error).get("error", str(error))) from None
        except OSError as error:
            raise Refused(f"{self._url}: {error}") from None


@dataclass
class Checked:
    board: str
    panel: str
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def boards() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))]


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", ())
        else:
            yield panel


def check_panel(board: str, panel: dict[str, Any], prometheus: Prometheus, names: set[str]) -> Checked:
    checked = Checked(board, panel["title"])
    if not panel["targets"]:
        checked.problems.append("no query")
    for target in panel["targets"]:
        expr = target["expr"]
        checked.problems += missing(expr, names)
        try:
            series = [(labels, value) for labels, value in prometheus.values(expr) if not math.isnan(value)]
        except Refused as error:
            checked.problems.append(f"{expr}: {error}")
            continue
        if not series:
            checked.problems.append(f"no data: {expr}")
        checked.lines += [f"{legend(target, labels)} = {value:,.6g}" for labels, value in series[:SHOWN]] + (
            [f"and {len(series) - SHOWN} more"] if len(series) > SHOWN else []
        )
    return checked


def check_annotations(board: dict[str, Any], prometheus: Prometheus, names: set[str]) -> Checked:
    """Rightly empty while nothing happens; the names and the syntax must be right."""
    checked = Checked(board["title"], "(annotations)")
    for annotation in board["annotations"]["list"]:
        if "expr" not in annotation:
            continue
        checked.problems += missing(annotation["expr"], names)
        try:
            checked.lines.append(f"{annotation['name']}: {len(prometheus.values(annotation['expr']))} now")
        except Refused as error:
            checked.problems.append(f"{annotation['expr']}: {error}")
    return checked


def missing(expr: str, names: set[str]) -> list[str]:
    return [f"there is no metric {name}" for name in sorted(set(OURS.findall(expr)) - names)]


def legend(target: dict[str, Any], labels: dict[str, str]) -> str:
    text = str(target["legendFormat"])
    if text == "__auto":
        return ", ".join(f"{name}={value}" for name, value in labels.items()) or "value"
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), text).strip()


def check(prometheus: Prometheus) -> list[Checked]:
    names = prometheus.names()
    found = []
    for board in boards():
        found += [check_panel(board["title"], panel, prometheus, names) for panel in panels(board)]
        found.append(check_annotations(board, prometheus, names))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="address of Prometheus")
    parser.add_argument("--window", default="1m", help="what rates are taken over, for $__rate_interval")
    args = parser.parse_args()
    try:
        found = check(Prometheus(args.prometheus, args.window))
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    for checked in found:
        print(f"{checked.board:26} {checked.panel:38} {'; '.join(checked.lines)}")
        for problem in checked.problems:
            print(f"{'':26} PROBLEM: {problem}")
    wrong = sum(bool(checked.problems) for checked in found)
    print(f"{len(found)} panels and sets of annotations, {wrong} with a problem")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
