"""Where tasks run on a real standalone cluster: on the node whose broker leads what they read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from standalone import StandaloneCluster
from topics import Topic

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NODES = ("127.0.0.1", "127.0.0.2")
DRIVER = """
import json, sys
from penstock.spark import session
master, servers, topic, target, directory = sys.argv[1:]
# A slot on each node; a task waits for the right one.
confs = {"spark.ui.enabled": False, "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
spark = session("nodes", master, **confs, **{"spark.locality.wait": "20s", "spark.sql.shuffle.partitions": 1})
at = {"kafka.bootstrap.servers": servers}
source = {**at, "subscribe": topic, "minPartitions": "4", "startingOffsets": "earliest"}
here = "reflect('java.lang.System', 'getProperty', 'user.dir') as value"
checkpoint = "checkpointLocation"

def started(kind, trigger):
    rows = spark.readStream.format("penstock").options(**source).option("realTimeTasks", "1").load()
    writer = rows.selectExpr(here, f"'{kind}' as key").writeStream.format("penstock").options(**at)
    writer = writer.option("topic", target).option("checkpointLocation", f"{directory}/{kind}")
    return writer.outputMode("update").trigger(**trigger).start()

rows = spark.read.format("penstock").options(**source).load()
rows.selectExpr(here, "'batch' as key").write.format("penstock").options(**at).option("topic", target).save()
assert started("micro-batch", {"availableNow": True}).awaitTermination(100)
query = started("real-time", {"realTime": "5 seconds"})
while not query.recentProgress or not query.recentProgress[-1].numInputRows:
    query.awaitTermination(0.2)
query.stop()
where = spark.read.format("penstock").options(**at, subscribe=target).load()
where = where.selectExpr("cast(key as string) key", "cast(value as string) value")
print(json.dumps([list(row) for row in where.groupBy("key", "value").count().collect()]))
"""


def test_a_task_runs_on_the_node_of_its_partitions_leader(
    new_topic: Callable[..., Topic], tmp_path: Path
) -> None:
    topic, target = new_topic(3), new_topic(1)
    topic.fill(300)
    with StandaloneCluster(tmp_path / "cluster", NODES, cores=1) as cluster:
        command = [sys.executable, "-c", DRIVER, cluster.master, topic.servers, topic.name, target.name]
        done = subprocess.run(
            [*command, str(tmp_path)], capture_output=True, text=True, timeout=240, env=dict(os.environ)
        )
    assert done.returncode == 0, done.stderr[-4000:]
    found = {(kind, count): Path(place) for kind, place, count in json.loads(done.stdout.splitlines()[-1])}
    assert set(found) == {("batch", 300), ("micro-batch", 300), ("real-time", 300)}
    for place in found.values():
        assert place.is_relative_to(tmp_path / "cluster" / NODES[0])
