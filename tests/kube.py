"""helm and kubectl for tests: found on the PATH or in the cache that scripts/kube fills."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "k8s" / "penstock"
SCRIPTS = ROOT / "scripts" / "kube"
VALUES = sorted(path.name for path in CHART.glob("values*.yaml"))
CACHE = Path(
    os.environ.get("PENSTOCK_KUBE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "kube"
)
PATH = f"{CACHE / 'bin'}{os.pathsep}{os.environ['PATH']}"

needs_helm = pytest.mark.skipif(
    shutil.which("helm", path=PATH) is None, reason="needs helm (scripts/kube/build.sh helm)"
)


def run(*command: str, timeout: float = 300, check: bool = True, stdin: str | None = None) -> str:
    """Standard output of a command; a failure shows what it said."""
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": PATH},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"{' '.join(command)}: {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


def render(values: str, *options: str, kube: str = "1.34") -> list[dict[str, Any]]:
    """Every object of the chart with one of its values files."""
    command = ["helm", "template", "it", str(CHART), "--namespace", "streams", "--kube-version", kube]
    text = _rendered((*command, "-f", str(CHART / values), *options))
    return [each for each in yaml.safe_load_all(text) if each]


@cache
def _rendered(command: tuple[str, ...]) -> str:
    return run(*command)


def pods(objects: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pod specs of a rendered chart, by the name of what makes them."""
    for each in objects:
        name = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] == "Pod":
            yield name, each["spec"]
        elif each["kind"] in ("StatefulSet", "Deployment", "Job"):
            yield name, each["spec"]["template"]["spec"]


def kubectl(*arguments: str, **options: Any) -> str:
    return run("kubectl", *arguments, **options)


def get(kind: str, namespace: str, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        kubectl("get", kind, "--namespace", namespace, "-o", "json", *options)
    )["items"]
    return found
