"""What a cluster says of its replication, before and after a broker is lost."""

from __future__ import annotations

from pathlib import Path

from cluster import Cluster, Load
from harness import eventually
from scraping import Page, scrape

PARTITIONS = 4


def metrics(cluster: Cluster, broker: int) -> Page:
    return scrape(cluster.brokers[broker].http + "/metrics")


def test_replication_can_be_followed_through_the_loss_of_a_broker(tmp_path: Path) -> None:
    with Cluster(tmp_path).start() as cluster:
        cluster.create("watched", PARTITIONS, 2)
        load = Load(cluster, "watched", PARTITIONS).start()
        load.progress(500)

        def settled() -> bool:
            pages = [metrics(cluster, broker) for broker in cluster.brokers]
            in_sync = sum(page.sum("penstock_in_sync_sets", topic="watched", size="2") for page in pages)
            lacking = sum(page.of("penstock_under_replicated_partitions") for page in pages)
            leading = all(page.of("penstock_partitions", role="leader") > 0 for page in pages)
            return in_sync == PARTITIONS and lacking == 0 and leading

        eventually(settled, timeout=30)
        one = metrics(cluster, 1)
        assert one.of("penstock_metadata_reachable") == 1
        assert one.of("penstock_brokers_alive") == 2
        assert one.of("penstock_partitions", role="backup") > 0
        assert one.sum("penstock_elections_total", cause="first") > 0
        assert one.of("penstock_elections_total", cause="failover") == 0
        assert one.of("penstock_backup_partitions", backup="2", state="streaming") > 0
        assert one.of("penstock_backup_lag_records", backup="2") >= 0
        both = [metrics(cluster, broker) for broker in cluster.brokers]
        assert all(page.of("penstock_topic_bytes_replicated_total", topic="watched") > 0 for page in both)

        everything = one.sum("penstock_topic_partitions")
        cluster.brokers[2].kill()

        def taken_over() -> bool:
            page = metrics(cluster, 1)
            led = page.of("penstock_partitions", role="leader")
            return led == page.of("penstock_under_replicated_partitions") == everything

        eventually(taken_over, timeout=30)
        load.progress(100)
        load.finish()
        one = metrics(cluster, 1)
        assert one.of("penstock_elections_total", cause="failover") > 0
        assert one.of("penstock_in_sync_sets", topic="watched", size="1") == PARTITIONS
        assert one.of("penstock_in_sync_changes_total", change="shrink") > 0
        assert one.of("penstock_backup_partitions", backup="2", state="streaming") == 0
        assert one.of("penstock_backup_max_lag_records", backup="2") > 0
