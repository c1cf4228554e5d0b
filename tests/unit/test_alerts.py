"""Alert rules: promtool takes them, each is made to fire, and each leads to a section of the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "grafana" / "prometheus"
RULES = (PROMETHEUS / "rules" / "penstock.yml").read_text()
ALERTS = re.findall(r"- alert: (\w+)", RULES)


def promtool(*arguments: str) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: scripts/system-packages.sh")
    done = subprocess.run([tool, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    promtool("check", "config", "prometheus.yml")


def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", "tests/penstock.yml")


def test_every_alert_is_made_to_fire_and_to_keep_quiet() -> None:
    cases = (PROMETHEUS / "tests" / "penstock.yml").read_text()
    fired = set(re.findall(r"- alertname: (\w+)\n\s+eval_time: .*\n\s+exp_alerts:\n\s+- exp_labels", cases))
    assert fired == set(ALERTS)
    quiet = set(re.findall(r"\{alertname: (\w+), eval_time: \w+, exp_alerts: \[\]\}", cases))
    assert quiet == set(ALERTS)


def test_every_alert_links_to_what_to_do() -> None:
    links = re.findall(r"runbook_url: (\S+)#(\S+)", RULES)
    assert len(links) == len(ALERTS)
    for file, anchor in links:
        headings = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
        assert anchor in anchors, f"{file} has no section for #{anchor}"
