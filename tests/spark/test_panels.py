"""Every panel of every dashboard has data, from a real cluster that a real Prometheus scrapes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import Cluster
from harness import PENSTOCK, eventually, free_port

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
TOPIC, PARTITIONS = "events", 4


@contextlib.contextmanager
def process(directory: Path, name: str, *command: str, **environment: str) -> Iterator[Path]:
    """A program for the length of a block, and where it logs."""
    log = directory / f"{name}.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,  # with Spark's JVM
        )
    try:
        yield log
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@contextlib.contextmanager
def prometheus(directory: Path, targets: dict[str, str]) -> Iterator[str]:
    """Prometheus with the configuration of the compose cluster, but for the addresses."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: scripts/system-packages.sh")
    config = (ROOT / "grafana" / "prometheus" / "prometheus.yml").read_text()
    for theirs, ours in targets.items():
        assert f'"{theirs}"' in config
        config = config.replace(f'"{theirs}"', f'"{ours}"')
    config = config.replace("rules/*.yml", f"{ROOT}/grafana/prometheus/rules/*.yml").replace("5s", "1s")
    file, address = directory / "prometheus.yml", f"127.0.0.1:{free_port()}"
    file.write_text(config)
    options = (f"--config.file={file}", f"--storage.tsdb.path={directory / 'tsdb'}")
    with process(directory, "prometheus", program, *options, f"--web.listen-address={address}"):
        yield f"http://{address}"


def value(prometheus: str, query: str) -> float:
    """Of a query with one series; 0 while there is none."""
    address = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
    except OSError:
        return 0.0  # not there yet
    return float(found[0]["value"][1]) if found else 0.0


def test_every_panel_has_data_of_a_cluster_that_runs(tmp_path: Path) -> None:
    producer, query, ui = (f"127.0.0.1:{free_port()}" for _ in range(3))
    with contextlib.ExitStack() as running:
        cluster = running.enter_context(Cluster(tmp_path).start())
        cluster.create(TOPIC, PARTITIONS, 2)
        load = ("load", "-t", TOPIC, "-p", str(PARTITIONS), "--chunk", "2KiB", "--rate", "2000")
        running.enter_context(
            process(
                tmp_path,
                "load",
                *(*PENSTOCK, *load, "--seconds", "600", "--metrics", producer),
                PENSTOCK_BROKER=cluster.brokers[1].address,
            )
        )
        job = (str(ROOT / "spark-jobs" / "filter.py"), "--sink", "noop", "--master", "local[2]")
        reads = ("--servers", cluster.bootstrap, "--topic", TOPIC)
        log = running.enter_context(
            process(
                tmp_path,
                "job",
                *(sys.executable, *job, *reads, "--metrics-port", query.rpartition(":")[2]),
                PYSPARK_SUBMIT_ARGS=f"--driver-memory 700m --conf spark.ui.port={ui.rpartition(':')[2]} "
                "pyspark-shell",
            )
        )
        url = running.enter_context(
            prometheus(
                tmp_path,
                {
                    "broker-a:9644": f"127.0.0.1:{cluster.brokers[1].http_port}",
                    "broker-b:9644": f"127.0.0.1:{cluster.brokers[2].http_port}",
                    "producer:9645": producer,
                    "job:9646": query,
                    "job:4040": ui,
                },
            )
        )
        command = [sys.executable, str(ROOT / "grafana" / "check_panels.py"), "--prometheus", url]
        shown = ""

        def all_panels_have_data() -> bool:
            nonlocal shown
            done = subprocess.run([*command, "--window", "30s"], capture_output=True, text=True, timeout=60)
            shown = done.stdout + done.stderr
            return done.returncode == 0

        try:
            pushed = 'sum(penstock_query_read_records_total{way="push"})'
            eventually(lambda: value(url, pushed) > 0, timeout=180, interval=0.5)
            eventually(all_panels_have_data, timeout=60, interval=1)
        except AssertionError:
            pytest.fail(f"{shown}\n{log.read_text()[-3000:]}")
        assert value(url, "min(up)") == 1, "every target of the configuration answers"
        assert value(url, f'sum(penstock_topic_records_out_total{{topic="{TOPIC}", way="push"}})') > 0
        print(shown)
