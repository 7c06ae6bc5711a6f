"""Health and model metadata as KServe's Open Inference Protocol (v2) names them, for tools that look there.

A model is a scenario, its versions are the releases that answer in it, and its tensors are the columns that POST /rank
takes and answers, by their path in the JSON body. Inference is POST /rank alone: a request without candidates, ads that
are dropped and an order have no place in a v2 tensor.

Source: github.com/kserve/open-inference-protocol, ``specification/protocol/inference_rest.md``.
"""

import importlib.metadata
from collections.abc import Iterator
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from contracts.schema import Feature, FeatureSchema
from service.follower import Follower
from service.media import JSON
from service.openapi import answers, reference
from service.releases import LoadedRelease
from service.status import readiness
from service.telemetry import Telemetry

PLATFORM = "adsieve"
ANY_LENGTH = -1
_DATATYPES = {"dense": "FP32", "embedding": "FP32"}
"""Of a feature's values; whatever is looked up in a table, and a time, travels as text: ``BYTES``."""


class ServerLive(msgspec.Struct, frozen=True, kw_only=True):
    """The process runs."""

    live: bool


class ServerReady(msgspec.Struct, frozen=True, kw_only=True):
    """Requests are answered; /health/ready tells more."""

    ready: bool


class ServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What serves, and no extension of the protocol."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """One column of POST /rank by its path in the body; a size of -1 is any."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario: the releases that answer in it, and the columns of its requests and answers."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReady(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a scenario is answered by a release that is loaded and warm."""

    name: str
    ready: bool


class ProtocolError(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, in the form of the protocol."""

    error: str


KSERVE_TYPES = (ServerLive, ServerReady, ServerMetadata, TensorMetadata, ModelMetadata, ModelReady, ProtocolError)


def kserve_router(follower: Follower, telemetry: Telemetry) -> APIRouter:
    """The routes below /v2 over one follower."""
    router = APIRouter(prefix="/v2", default_response_class=Response, tags=["Open Inference Protocol"])

    @router.get("", summary="What serves", responses=_answers(ServerMetadata))
    async def server() -> Response:
        version = importlib.metadata.version("adsieve")
        return _told(ServerMetadata(name="adsieve", version=version, extensions=[]))

    @router.get("/health/live", summary="The process runs", responses=_answers(ServerLive))
    async def live() -> Response:
        return _told(ServerLive(live=True))

    @router.get("/health/ready", summary="Requests are answered", responses=_answers(ServerReady, 503))
    async def ready() -> Response:
        is_ready = readiness(follower, telemetry.serving.num_loading).ready
        return _told(ServerReady(ready=is_ready), 200 if is_ready else 503)

    @router.get("/models/{name}", summary="A scenario", responses=_answers(ModelMetadata, 404))
    @router.get("/models/{name}/versions/{version}", summary="A release", responses=_answers(ModelMetadata, 404))
    async def metadata(name: str, version: str | None = None) -> Response:
        found = _serving(follower, name, version)
        return _unknown(name, version) if found is None else _told(model_metadata(found, _versions(follower, name)))

    @router.get("/models/{name}/ready", summary="A scenario is answered", responses=_answers(ModelReady, 404))
    @router.get(
        "/models/{name}/versions/{version}/ready", summary="A release answers", responses=_answers(ModelReady, 404)
    )
    async def model_ready(name: str, version: str | None = None) -> Response:
        found = _serving(follower, name, version)
        return _unknown(name, version) if found is None else _told(ModelReady(name=name, ready=True))

    return router


def model_metadata(loaded: LoadedRelease, versions: list[str]) -> ModelMetadata:
    """What a scenario takes and answers, by the schemas of both its models."""
    schemas = [loaded.schema, *([loaded.heavy.schema] if loaded.heavy else [])]
    candidates = [_column("candidates.ids"), _column("candidates.bids", "FP64"), _column("candidates.objectives")]
    heads = [f"ads.light.{task}" for task in loaded.tasks]
    heads += [f"ads.heavy.{task}" for task in loaded.heavy.tasks] if loaded.heavy else []
    return ModelMetadata(
        name=loaded.scenario,
        versions=versions,
        platform=PLATFORM,
        inputs=[*_columns(schemas, "query"), *candidates, *_columns(schemas, "pair")],
        outputs=[
            _column("ads.ids"),
            _column("ads.utilities", "FP64"),
            *(_column(head, "FP32") for head in heads),
        ],
    )


def _columns(schemas: list[FeatureSchema], side: Any) -> list[TensorMetadata]:
    """The features of one side of a request, each once."""
    found: dict[str, TensorMetadata] = {}
    for schema in schemas:
        for name, feature in schema.side_features(side).items():
            for column in _of_feature("query" if side == "query" else "candidates", name, feature):
                found.setdefault(column.name, column)
    return list(found.values())


def _of_feature(place: str, name: str, feature: Feature) -> Iterator[TensorMetadata]:
    """A history has a column for each of its fields; a pair feature has a value for each candidate."""
    if feature.kind == "sequence":
        for part, field in (feature.fields or {}).items():
            yield _column(f"{place}.{name}.{part}", _DATATYPES.get(field.kind, "BYTES"))
        return
    each = feature.length if feature.kind == "embedding" else ANY_LENGTH if feature.kind == "multi_categorical" else 1
    shape = [each or 1] if place == "query" else [ANY_LENGTH] + [each or 1] * (each != 1)
    yield TensorMetadata(name=f"{place}.{name}", datatype=_DATATYPES.get(feature.kind, "BYTES"), shape=shape)


def _column(name: str, datatype: str = "BYTES") -> TensorMetadata:
    return TensorMetadata(name=name, datatype=datatype, shape=[ANY_LENGTH])


def _answering(follower: Follower, name: str) -> list[LoadedRelease]:
    """The releases that answer in a scenario: the one that serves first, then that of an experiment."""
    snapshot = follower.snapshot
    return [held[name] for held in (snapshot.releases, snapshot.arms) if name in held]


def _serving(follower: Follower, name: str, version: str | None) -> LoadedRelease | None:
    found = _answering(follower, name)
    return next((one for one in found if version in (None, one.release.release_id)), None)


def _versions(follower: Follower, name: str) -> list[str]:
    return [one.release.release_id for one in _answering(follower, name)]


def _unknown(name: str, version: str | None) -> Response:
    what = f"scenario {name!r}" if version is None else f"scenario {name!r} in release {version!r}"
    return _told(ProtocolError(error=f"nothing answers {what}; GET /releases lists what serves"), 404)


def _told(record: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(record), status, media_type=JSON)


def _answers(type_: type, *others: int) -> dict[int | str, dict[str, Any]]:
    """The responses of a route: 200, 503 of the same type, 404 as the protocol has errors."""
    responses = answers(type_, problems=())
    if 503 in others:
        responses[503] = {**responses[200], "description": "Not ready"}
    if 404 in others:
        content = {JSON: {"schema": reference(ProtocolError)}}
        responses[404] = {"description": "Nothing of this name answers", "content": content}
    return responses
