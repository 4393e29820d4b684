"""OpenAPI 3.1 document of the models that a server has. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from pilotlight_predictor.protocols.pages.model_description import ModelDescription
from pilotlight_predictor.protocols.pages.operations import ANYTHING, Operation, model_operations, openai_operations

Json = Any
SERVER: Final = (
    Operation("server", "/v2", "Name, version and extensions of the server"),
    Operation("live", "/v2/health/live", "Whether the server runs"),
    Operation("health", "/v2/health/ready", "Whether all required models are ready: 200, else 503 with the reason"),
    Operation("models", "/v2/models", "Names of all models"),
    Operation("status", "/status", "State of the server, its models and its cold start"),
    Operation("metrics", "/metrics", "Metrics for Prometheus", response={"type": "string"}, content_type="text/plain"),
)
ERROR: Final = {"description": "Error, with the reason", "content": {"application/json": {"schema": ANYTHING}}}


def document(models: Sequence[ModelDescription], name: str, version: str, token: bool) -> dict[str, Json]:
    """Return the document; paths are relative to its own. `token`: requests need a bearer token."""
    tags: list[dict[str, str]] = []
    paths: dict[str, Json] = {}

    def add(tag: str, description: str, operations: Sequence[Operation]) -> None:
        tags.append({"name": tag, "description": description})
        for each in operations:
            method = "get" if each.body is None else "post"
            paths[each.path] = {method: {"operationId": f"{each.name} {tag}", "tags": [tag], **_operation(each)}}

    for model in models:
        state = f"{model.state}{': ' if model.reason else ''}{model.reason}"
        add(model.name, f"{model.platform} {', '.join(model.versions)} {state}".strip(), model_operations(model))
    if operations := openai_operations(models):
        add("/v1", "OpenAI's protocol", operations)
    add("/v2", "The server itself", SERVER)
    security = {"components": {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
                "security": [{"bearer": []}]} if token else {}  # fmt: skip
    info = {"title": name, "version": version}
    return {"openapi": "3.1.0", "info": info, "servers": [{"url": "."}], "tags": tags, "paths": paths, **security}


def _operation(operation: Operation) -> dict[str, Json]:
    content: dict[str, Json] = {operation.content_type: {"schema": operation.response}}
    responses = {"200": {"description": "Done", "content": content}, "default": ERROR}
    described: dict[str, Json] = {"summary": operation.summary, "responses": responses}
    if operation.body is not None:
        body: dict[str, Json] = {"schema": operation.body}
        if operation.example is not None and not operation.zero_bytes:
            body["example"] = operation.example
        described["requestBody"] = {"required": True, "content": {"application/json": body}}
    return described
