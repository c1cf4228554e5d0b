"""The Helm chart without a cluster: what matters about the objects that each values file makes.

Needs helm; whether an API server takes the objects and they do what they say is tests/k8s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube import CHART, ROOT, VALUES, needs_helm, pods, render, run
from penstock.settings import Settings, load

pytestmark = needs_helm


def _json(text: str) -> list[str]:
    return ["--set-json", text]


EVERYTHING = [
    *_json(
        'spark.jobs=[{"name": "count", "program": "/opt/penstock/jobs/count.py",'
        ' "arguments": ["--topic", "a"], "confs": {"spark.ui.enabled": false},'
        ' "checkpoint": {"size": "1Gi"}}]'
    ),
    *(
        "--set",
        "external.enabled=true,monitoring.podMonitor.enabled=true,monitoring.serviceMonitor.enabled=true",
    ),
]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def containers(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, pod in pods(objects):
        for container in pod["containers"] + pod.get("initContainers", []):
            yield f"{name}/{container['name']}", container


def broker_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return of_kind(objects, "StatefulSet")["it-broker"]


def mebibytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", text).groups()  # type: ignore[union-attr]
    return int(number) * (1024 if unit == "Gi" else 1)


@pytest.mark.parametrize("values", VALUES)
def test_helm_lint_finds_nothing(values: str) -> None:
    run("helm", "lint", "--strict", "--kube-version", "1.34", str(CHART), "-f", str(CHART / values))


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("options", [[], EVERYTHING], ids=["plain", "everything"])
class TestEveryObject:
    def test_pods_run_without_rights(self, values: str, options: list[str]) -> None:
        objects = render(values, *options)
        for name, pod in pods(objects):
            context = pod["securityContext"]
            assert context["runAsNonRoot"] is True, name
            assert context["runAsUser"] > 0, name
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
            assert pod["automountServiceAccountToken"] is False, name
            assert pod["serviceAccountName"] == "it", name
            assert pod["enableServiceLinks"] is False, name
            assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), name
            assert not any("hostPath" in volume for volume in pod.get("volumes", [])), name
        for name, container in containers(objects):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert "memory" in container["resources"]["limits"], name
        assert not {each["kind"] for each in objects} & {
            "Role",
            "RoleBinding",
            "ClusterRole",
            "ClusterRoleBinding",
        }

    def test_selectors_find_their_pods_and_no_others(self, values: str, options: list[str]) -> None:
        objects = render(values, *options)
        templates = {
            each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
            for each in objects
            if each["kind"] in ("StatefulSet", "Deployment", "Job")
        }
        for name, service in of_kind(objects, "Service").items():
            selector = {
                key: value for key, value in service["spec"]["selector"].items() if "pod-index" not in key
            }
            matching = [pod for pod, labels in templates.items() if selector.items() <= labels.items()]
            assert len(matching) == 1, (name, matching)
        for kind in ("StatefulSet", "Deployment"):
            for name, each in of_kind(objects, kind).items():
                assert each["spec"]["selector"]["matchLabels"].items() <= templates[name].items()
                # What an upgrade of the chart alone changes must not restart a pod.
                assert "helm.sh/chart" not in templates[name]

    def test_named_ports_are_there(self, values: str, options: list[str]) -> None:
        objects = render(values, *options)
        named = {port["name"] for _, container in containers(objects) for port in container.get("ports", [])}
        for service in of_kind(objects, "Service").values():
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= named
        for policy in of_kind(objects, "NetworkPolicy").values():
            for rule in policy["spec"].get("ingress", []):
                wanted = {port["port"] for port in rule.get("ports", []) if isinstance(port["port"], str)}
                assert wanted <= named, policy["metadata"]["name"]

    def test_every_pod_is_behind_a_network_policy(self, values: str, options: list[str]) -> None:
        objects = render(values, *options)
        covered = {"broker", "etcd", "spark-master", "spark-job"}
        for each in objects:
            if each["kind"] in ("StatefulSet", "Deployment", "Job"):
                labels = each["spec"]["template"]["metadata"]["labels"]
                assert labels["app.kubernetes.io/component"] in covered
        assert set(of_kind(objects, "NetworkPolicy")) == {"it-broker", "it-etcd", "it-spark"}


@pytest.mark.parametrize("values", VALUES)
class TestTheBrokersPod:
    def test_its_settings_are_settings_of_the_broker(self, values: str) -> None:
        pod = broker_of(render(values, *EVERYTHING))["spec"]["template"]["spec"]
        environment = {
            variable["name"]: variable.get("value", "0")
            .replace("$(POD_NAME)", "it-broker-0")
            .replace("$(POD_IP)", "10.0.0.1")
            for variable in pod["containers"][0]["env"]
        }
        known = {f"PENSTOCK_{name.upper()}" for name in Settings.model_fields}
        assert {name for name in environment if name.startswith("PENSTOCK_")} <= known
        settings, _ = load({}, environment, None)
        assert settings.advertise == "it-broker-0.it-brokers.streams.svc.cluster.local:9092"
        assert settings.cluster_prefix == "/streams/it"

    def test_its_memory_counts_the_shared_log(self, values: str) -> None:
        objects = render(values)
        pod = broker_of(objects)["spec"]["template"]["spec"]
        broker = pod["containers"][0]
        (shared,) = [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shared"]
        assert shared["medium"] == "Memory"
        variables = {each["name"]: each.get("value") for each in broker["env"]}
        log = mebibytes(variables["PENSTOCK_MEMORY"].removesuffix("B"))
        receiving = mebibytes(variables["PENSTOCK_REQUEST_MEMORY"].removesuffix("B"))
        assert mebibytes(shared["sizeLimit"]) >= log * 5 // 4  # a quarter for what readers hold
        limit = mebibytes(broker["resources"]["limits"]["memory"])
        assert limit >= mebibytes(shared["sizeLimit"]) + receiving + 128
        assert broker["resources"]["requests"]["memory"] == broker["resources"]["limits"]["memory"]

    def test_the_worker_can_write_cursors_and_nothing_else_of_the_log(self, values: str) -> None:
        broker, worker = broker_of(render(values))["spec"]["template"]["spec"]["containers"]
        mounts = {each["mountPath"]: each for each in worker["volumeMounts"] if each["name"] == "shared"}
        assert mounts["/run/penstock/log"]["readOnly"] is True
        assert not mounts["/run/penstock/cursors"].get("readOnly")
        assert {each["mountPath"] for each in broker["volumeMounts"]} >= mounts.keys()

    def test_spark_knows_the_worker_by_the_name_its_broker_tells(self, values: str) -> None:
        broker, worker = broker_of(render(values))["spec"]["template"]["spec"]["containers"]
        told = next(each["value"] for each in broker["env"] if each["name"] == "PENSTOCK_ADVERTISE")
        assert worker["args"][:2] == ["--host", told.rpartition(":")[0]]

    def test_probes_ask_what_they_mean(self, values: str) -> None:
        broker = broker_of(render(values))["spec"]["template"]["spec"]["containers"][0]
        assert broker["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert broker["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert broker["startupProbe"]["httpGet"]["path"] == "/healthz"

    def test_a_stop_has_time_to_hand_over(self, values: str) -> None:
        pod = broker_of(render(values))["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] >= 30  # preStop 1 s, hand-over 3 s, write-behind 4 s
        assert "preStop" in pod["containers"][0]["lifecycle"]


def test_brokers_go_to_other_nodes() -> None:
    for values, key in (
        ("values-laptop.yaml", "preferredDuringSchedulingIgnoredDuringExecution"),
        ("values-production.yaml", "requiredDuringSchedulingIgnoredDuringExecution"),
    ):
        affinity = broker_of(render(values))["spec"]["template"]["spec"]["affinity"]
        assert list(affinity["podAntiAffinity"]) == [key]


def test_one_broker_at_a_time_may_be_disrupted() -> None:
    for values in VALUES:
        budgets = of_kind(render(values), "PodDisruptionBudget")
        assert budgets["it-broker"]["spec"]["maxUnavailable"] == 1


def test_each_broker_has_a_port_of_its_own_on_the_nodes() -> None:
    services = of_kind(render("values-laptop.yaml"), "Service")
    ports = {
        service["spec"]["selector"]["apps.kubernetes.io/pod-index"]: service["spec"]["ports"][0]["nodePort"]
        for name, service in services.items()
        if "-external-" in name
    }
    assert ports == {"0": 30192, "1": 30193}
    assert not [name for name in of_kind(render("values.yaml"), "Service") if "-external-" in name]


def test_the_log_is_on_a_volume_or_not() -> None:
    def claims(*options: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = broker_of(render("values.yaml", *options))["spec"].get(
            "volumeClaimTemplates", []
        )
        return found

    assert "storageClassName" not in claims()[0]["spec"]
    assert claims("--set", "broker.persistence.storageClass=fast")[0]["spec"]["storageClassName"] == "fast"
    assert claims("--set-string", "broker.persistence.storageClass=")[0]["spec"]["storageClassName"] == ""
    assert claims("--set", "broker.persistence.enabled=false") == []


def test_an_etcd_of_ones_own() -> None:
    options = ["--set", "etcd.enabled=false", *_json('etcd.endpoints=["http://a:2379", "http://b:2379"]')]
    objects = render("values.yaml", *options)
    variables = broker_of(objects)["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "PENSTOCK_CLUSTER", "value": "http://a:2379,http://b:2379"} in variables
    assert "it-etcd" not in of_kind(objects, "StatefulSet")


def test_a_job_is_submitted_to_the_workers() -> None:
    (job,) = of_kind(render("values.yaml", *EVERYTHING), "Job").values()
    container = job["spec"]["template"]["spec"]["containers"][0]
    command = container["command"] + container["args"]
    assert command[3] == "spark-submit"
    assert "--master=spark://it-spark-master.streams.svc.cluster.local:7077" in command
    assert "--conf=spark.ui.enabled=false" in command
    assert command[-2:] == ["--topic", "a"]
    assert command.index("/opt/penstock/jobs/count.py") < command.index("--checkpoint=/checkpoint/count")


def test_without_spark_there_is_none_of_it() -> None:
    objects = render("values.yaml", "--set", "spark.enabled=false")
    assert len(broker_of(objects)["spec"]["template"]["spec"]["containers"]) == 1
    others = [each for each in objects if each["kind"] != "ConfigMap"]
    assert not [each for each in others if "spark" in each["metadata"]["name"]]


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("broker.memory=12", "memory"),
        ("broker.memory=1GB", "memory"),
        ("broker.spread=maybe", "spread"),
        ("etcd.replicas=2", "replicas"),
        ("broker.settings.listen=0.0.0.0:1", "listen"),
        ("brokers.replicas=3", "brokers"),
        ("broker.terminationGracePeriodSeconds=5", "terminationGracePeriodSeconds"),
        ("etcd.enabled=false", "etcd.endpoints"),
    ],
)
def test_values_that_make_no_sense_are_refused(setting: str, complaint: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        render("values.yaml", "--set", setting)


def test_dashboards_and_alert_rules_are_those_of_the_project() -> None:
    """A chart can read its own directory only: `make chart` copies them there."""
    ours = _files(ROOT / "grafana" / "dashboards")
    assert _files(CHART / "dashboards") == ours, "run `make chart`"
    rules = _files(ROOT / "grafana" / "prometheus" / "rules")
    assert _files(CHART / "rules") == rules, "run `make chart`"
    shipped = of_kind(render("values-production.yaml"), "PrometheusRule").values()
    assert [each["spec"] for each in shipped] == [yaml.safe_load(rules[name]) for name in sorted(rules)]
    maps = {
        name: each
        for name, each in of_kind(render("values.yaml"), "ConfigMap").items()
        if "grafana_dashboard" in each["metadata"]["labels"]
    }
    assert len(maps) == len(ours)
    for each in maps.values():
        ((name, text),) = each["data"].items()
        assert json.loads(text) == json.loads(ours[name])


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("[!.]*")}
