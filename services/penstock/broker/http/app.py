"""Routes: which address answers what. The work is in `views` and in `metrics`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, Response
from pydantic import BaseModel, TypeAdapter

from penstock import __version__
from penstock.broker.http import cluster as cluster_view
from penstock.broker.http import models, views
from penstock.broker.http.whole import whole_cluster
from penstock.broker.metrics import Metrics

if TYPE_CHECKING:
    from penstock.broker.server import Broker

_JSON = "application/json"


def _answer(model: BaseModel, status: int = 200) -> Response:
    # Given as a response, so that FastAPI doesn't validate a thousand partitions a second time.
    return Response(model.model_dump_json(indent=2), status, media_type=_JSON)


def _answer_all(rows: Sequence[Any], adapter: TypeAdapter[Any]) -> Response:
    return Response(adapter.dump_json(rows, indent=2), media_type=_JSON)


_TOPICS = TypeAdapter(list[models.TopicSummary])
_GROUPS = TypeAdapter(list[models.GroupSummary])
_CONNECTIONS = TypeAdapter(list[models.ConnectionStatus])
_READERS = TypeAdapter(list[models.ReaderStatus])


def make_app(broker: Broker, metrics: Metrics) -> FastAPI:
    app = FastAPI(
        title="Penstock broker",
        version=__version__,
        description="Health, metrics and what an operator asks at 3 a.m.",
        docs_url=None,  # its page loads scripts from elsewhere; /openapi.json is all there is to it
        redoc_url=None,
    )
    _add_probes(app, broker, metrics)
    app.include_router(_views(broker))
    return app


def _add_probes(app: FastAPI, broker: Broker, metrics: Metrics) -> None:
    # All handlers are coroutines: plain functions would run on threads, beside the event loop.

    @app.get("/healthz", response_model=models.Alive, tags=["probes"], summary="The process is alive")
    async def healthz() -> Response:
        return _answer(models.Alive())

    @app.get(
        "/readyz",
        response_model=models.Readiness,
        responses={503: {"model": models.Readiness}},
        tags=["probes"],
        summary="The broker serves clients; 503 with the reason while it doesn't, or the disk refuses",
    )
    async def readyz() -> Response:
        reason = broker.unready_reason()
        ready = reason is None
        return _answer(models.Readiness(ready=ready, reason=reason), 200 if ready else 503)

    @app.get(
        "/metrics",
        tags=["probes"],
        summary="Prometheus metrics",
        response_class=Response,
        dependencies=[Depends(_opened(broker))],
    )
    async def scrape(accept: Annotated[str, Header()] = "") -> Response:
        body, content_type = metrics.scrape(accept)
        return Response(body, headers={"content-type": content_type})


def _opened(broker: Broker) -> Callable[[], Awaitable[None]]:
    """Refuses what looks at the log while that is being brought back."""

    async def check() -> None:
        if not broker.opened:
            raise HTTPException(503, broker.unready_reason())

    return check


def _views(broker: Broker) -> APIRouter:
    app = APIRouter(dependencies=[Depends(_opened(broker))])
    missing: dict[int | str, dict[str, Any]] = {404: {"model": models.Problem}}

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> dict[str, list[str]]:
        return {"paths": [*sorted(request.app.openapi()["paths"]), request.app.openapi_url]}

    @app.get("/v1/broker", response_model=models.BrokerStatus, tags=["views"])
    async def broker_status() -> Response:
        return _answer(views.broker_status(broker))

    def own_view() -> models.ClusterStatus:
        if broker.cluster is None:
            raise HTTPException(404, "this broker is a node of its own, not one of a cluster")
        return cluster_view.cluster_status(broker.cluster)

    @app.get("/v1/cluster", response_model=models.ClusterStatus, responses=missing, tags=["views"])
    async def cluster() -> Response:
        return _answer(own_view())

    @app.get("/v1/cluster/whole", response_model=models.WholeCluster, responses=missing, tags=["views"])
    async def cluster_as_all_see_it() -> Response:
        return _answer(await whole_cluster(own_view()))

    @app.get("/v1/topics", response_model=list[models.TopicSummary], tags=["views"])
    async def topics() -> Response:
        return _answer_all(views.topic_summaries(broker.catalog), _TOPICS)

    @app.get("/v1/topics/{topic}", response_model=models.TopicDetail, responses=missing, tags=["views"])
    async def topic_detail(topic: str) -> Response:
        served = broker.catalog.by_name.get(topic)
        if served is None:
            raise HTTPException(404, f"there is no topic {topic!r}; /v1/topics lists those there are")
        return _answer(views.topic_detail(served))

    @app.get("/v1/groups", response_model=list[models.GroupSummary], tags=["views"])
    async def groups() -> Response:
        return _answer_all(views.group_summaries(broker.groups.groups(), broker.catalog), _GROUPS)

    @app.get("/v1/groups/{group:path}", response_model=models.GroupDetail, responses=missing, tags=["views"])
    async def group_detail(group: str) -> Response:
        found = next((view for view in broker.groups.groups() if view.group_id == group), None)
        if found is None:
            raise HTTPException(404, f"there is no group {group!r}; /v1/groups lists those there are")
        return _answer(views.group_detail(found, broker.catalog))

    @app.get("/v1/connections", response_model=list[models.ConnectionStatus], tags=["views"])
    async def connections() -> Response:
        return _answer_all(views.connections(broker), _CONNECTIONS)

    @app.get("/v1/readers", response_model=list[models.ReaderStatus], tags=["views"])
    async def readers() -> Response:
        return _answer_all(views.readers(broker.store.readers.slots(), broker.catalog), _READERS)

    return app
