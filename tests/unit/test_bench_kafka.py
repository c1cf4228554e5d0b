"""How the bench sets up Apache Kafka and when it leaves it out; no Kafka is started here."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock, patch

import pytest

from penstock.bench import kafka
from penstock.bench.experiment import CannotStart
from penstock.bench.experiments import failover, recovery
from penstock.bench.rig import Rig


def _settings(**options: int | bool) -> dict[str, str]:
    text = kafka.settings(9092, 9093, Path("/logs"), **options)  # type: ignore[arg-type]
    return dict(line.split("=", 1) for line in text.splitlines())


def test_a_single_node_serves_and_controls() -> None:
    found = _settings()
    assert found["process.roles"] == "broker,controller"
    assert found["listeners"] == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    assert found["controller.quorum.voters"] == "1@127.0.0.1:9093"


def test_a_controller_apart_survives_the_loss_of_any_broker() -> None:
    controller = _settings(node=3, controller=3, serves=False)
    broker = _settings(node=1, controller=3)
    assert controller["process.roles"] == "controller"
    assert controller["listeners"] == "CONTROLLER://127.0.0.1:9093"
    assert "advertised.listeners" not in controller
    assert broker["process.roles"] == "broker"
    assert broker["listeners"] == broker["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9092"
    assert broker["controller.quorum.voters"] == controller["controller.quorum.voters"] == "3@127.0.0.1:9093"


def test_kafka_sits_rounds_out_in_failover() -> None:
    options = failover.Subject.options_from(None, None, False, {})
    with Rig(pin=False) as rig, patch.object(failover, "_fail_over", return_value={"x": 1.0}):
        subject = failover.Subject(rig, options)
        side = failover._Side(MagicMock(), MagicMock(), MagicMock())
        subject._sides = {"": side, "kafka": side}
        ours = [subject.measure("kill", {}) for _ in range(options.repeat)]
        kafkas = [subject.measure("kafka kill", {}) for _ in range(options.repeat)]
    assert ours == [{"x": 1.0}] * options.repeat
    assert kafkas == [{"x": 1.0}] * 2 + [{}] * (options.repeat - 2)


def test_kafka_is_missing_from_a_quick_run_unless_it_is_named() -> None:
    for subject, contender in ((failover.Subject, "kafka kill"), (recovery.Subject, "kafka")):
        with Rig(pin=False) as rig, patch.object(kafka, "java", side_effect=kafka.NoKafka("no Java")):
            with pytest.raises(CannotStart, match="quick"):
                subject(rig, subject.options_from(None, None, True, {})).start(contender)
            with pytest.raises(CannotStart, match="no Java"):
                subject(rig, subject.options_from(None, None, True, {}, contender)).start(contender)
