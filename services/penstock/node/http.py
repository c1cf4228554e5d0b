"""The node's own HTTP: is it alive, are its brokers ready, and all their metrics in one answer.

Metrics are the brokers' own with a label `broker` added, and how often each was restarted. A broker that
doesn't answer is left out and shows as `penstock_node_broker_up 0`.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Final

from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from penstock import __version__
from penstock.node.supervisor import Child, Supervisor

_TIMEOUT: Final = 3.0


def make_app(supervisor: Supervisor) -> FastAPI:
    app = FastAPI(title="Penstock node", version=__version__, docs_url=None, redoc_url=None)

    @app.get("/healthz", summary="The supervisor is alive")
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz", summary="Every broker of this node is ready; 503 names those that aren't, and why")
    async def readyz(response: Response) -> dict[str, object]:
        children = supervisor.children
        reasons = await asyncio.gather(*(asyncio.to_thread(_unready_reason, child) for child in children))
        told = [
            f"broker {child.broker_id} {reason}"
            for child, reason in zip(children, reasons, strict=True)
            if reason is not None
        ]
        reason = "; ".join(told) or None
        response.status_code = 200 if reason is None else 503
        return {"ready": reason is None, "reason": reason}

    @app.get("/v1/node", summary="The brokers of this node")
    async def node() -> list[dict[str, object]]:
        return [
            {
                "broker_id": child.broker_id,
                "ready": child.ready,
                "pid": child.pid,
                "restarts": child.restarts,
                "last_exit": child.last_exit,
                "kafka": child.settings.listen,
                "http": child.settings.http,
                "data_dir": str(child.settings.data_dir),
            }
            for child in supervisor.children
        ]

    @app.get("/metrics", summary="Prometheus metrics of all brokers", response_class=Response)
    async def metrics() -> Response:
        texts = await asyncio.gather(*(asyncio.to_thread(_scrape, child) for child in supervisor.children))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Together(supervisor.children, texts))
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return app


def _unready_reason(child: Child) -> str | None:
    """What the broker itself says: one that has started may still catch up, or be out of touch."""
    if not child.ready:
        return "has not started"
    try:
        with urllib.request.urlopen(f"http://{child.settings.http}/readyz", timeout=_TIMEOUT):
            return None
    except urllib.error.HTTPError as refused:
        with refused:
            said = refused.read().decode(errors="replace")
        return f"is not ready: {_reason_in(said) or refused}"
    except OSError as error:
        return f"doesn't answer: {error}"


def _reason_in(said: str) -> str | None:
    try:
        return str(json.loads(said)["reason"])
    except (ValueError, TypeError, KeyError):
        return None


def _scrape(child: Child) -> str | None:
    try:
        with urllib.request.urlopen(f"http://{child.settings.http}/metrics", timeout=_TIMEOUT) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return None


class _Together(Collector):
    """Several brokers' metrics as one set of families."""

    def __init__(self, children: list[Child], texts: list[str | None]) -> None:
        self._children = children
        self._texts = texts

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("penstock_node_broker_up", "Whether it answers", labels=["broker"])
        restarts = CounterMetricFamily(
            "penstock_node_broker_restarts", "Times it was started again", labels=["broker"]
        )
        families: dict[str, Metric] = {}
        for child, text in zip(self._children, self._texts, strict=True):
            broker = str(child.broker_id)
            up.add_metric([broker], text is not None)
            restarts.add_metric([broker], child.restarts)
            for family in text_string_to_metric_families(text or ""):
                together = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type, family.unit)
                )
                together.samples += [_labelled(sample, broker) for sample in family.samples]
        return [up, restarts, *families.values()]


def _labelled(sample: Sample, broker: str) -> Sample:
    return sample._replace(labels={**sample.labels, "broker": broker})
