"""The dashboards: as their code makes them, whole, and what Grafana's schema takes. No Grafana is run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from grafana_foundation_sdk.models.prometheus import Dataquery

GRAFANA = Path(__file__).parents[2] / "grafana"
BOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
VARIABLES = {"datasource", "cluster", "topic", "query"}


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def panels(board: Any) -> list[Any]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_the_committed_dashboards_are_what_the_code_makes() -> None:
    done = subprocess.run(
        [sys.executable, str(GRAFANA / "build.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert [path.stem for path in BOARDS] == ["broker", "overview", "push-pull", "replication", "spark"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_the_sdks_schema_takes_a_dashboard_and_gives_it_back(path: Path) -> None:
    register_default_plugins()
    board = load(path)
    model = Dashboard.from_json(board)
    queries = [target for panel in model.panels or () for target in getattr(panel, "targets", None) or ()]
    assert queries
    assert all(isinstance(query, Dataquery) for query in queries), (
        "not known to the schema as Prometheus queries"
    )
    assert json.loads(json.dumps(model, cls=JSONEncoder)) == board


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_every_panel_says_what_it_shows(path: Path) -> None:
    board = load(path)
    assert {variable["name"] for variable in board["templating"]["list"]} == VARIABLES
    assert {each["name"] for each in board["annotations"]["list"]} >= {"Elections", "Push/pull"}
    for panel in panels(board):
        title, defaults = panel["title"], panel["fieldConfig"]["defaults"]
        assert len(panel["description"]) > 10, title
        assert defaults["unit"], title
        assert defaults["thresholds"]["steps"], title
        assert panel["datasource"]["uid"] == "${datasource}", title
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"]))
            assert used <= VARIABLES | {"__rate_interval"}, title
            assert "$cluster" in target["expr"] or "ALERTS" in target["expr"], title


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_do_not_overlap_and_fit_the_grid(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(load(path)):
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
