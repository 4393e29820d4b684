"""The OpenAPI document: valid, and true of the server that gives it."""

from typing import Any

from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from tests.serving import RunningServer


def described(server: RunningServer) -> dict[str, Any]:
    answer = server.get("/openapi.json")
    assert answer.status == 200
    document: dict[str, Any] = answer.json()
    return document


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(method, path, each) for path, methods in document["paths"].items() for method, each in methods.items()]


def check_examples(server: RunningServer) -> set[str]:
    """Send every operation with its example; requests and responses fit their schemas. Return the paths."""
    document, sent = described(server), set()
    OpenAPIV31SpecValidator(document).validate()
    for method, path, operation in operations(document):
        body = operation["requestBody"]["content"]["application/json"] if method == "post" else {}
        if method == "post" and "example" not in body:
            continue
        if body:
            OAS31Validator(body["schema"]).validate(body["example"])
        answer = server.request(method.upper(), path, body.get("example", b""))
        assert answer.status == 200, (path, body, answer.body)
        content_type, content = next(iter(operation["responses"]["200"]["content"].items()))
        assert answer.headers["content-type"].startswith(content_type)
        if content_type == "application/json":
            OAS31Validator(content["schema"]).validate(answer.json())
        sent.add(path)
    return sent


def test_every_example_is_answered(server: RunningServer) -> None:
    sent = check_examples(server)
    assert {
        "/v2/models/add_sub/infer",
        "/v1/models/add_sub:predict",
        "/v2/models/%C3%BCml%C3%A4ut%20%26%20co/infer",
    } <= sent
    assert {"/v2/models/scalar/infer", "/v2/models/identity_bytes/infer", "/metrics", "/status"} <= sent


def test_every_kind_of_model_has_an_example_that_is_answered(pages: RunningServer) -> None:
    sent = check_examples(pages)
    inferences = {f"/v2/models/{name}/infer" for name in ("add_sub", "example", "echo", "flowers", "sequence", "twice")}
    assert inferences <= sent
    assert {"/v1/chat/completions", "/v1/completions", "/v1/embeddings"} <= sent
    assert {"/v1/responses", "/v1/rerank", "/v1/score"} <= sent
    assert "/v2/models/counts/generate_stream" in sent
    assert "/v2/models/image/infer" not in sent  # 150,528 numbers are no example for a form
    paths = described(pages)["paths"]
    assert "/v2/models/counts/infer" not in paths  # several responses
    assert "/v1/models/sequence:predict" not in paths  # V1 has no sequence id


def test_chat_is_described_for_models_with_a_chat_template_alone(pages: RunningServer) -> None:
    def models(path: str) -> list[str]:
        body = described(pages)["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        return list(body["schema"]["properties"]["model"]["enum"])

    assert models("/v1/completions") == ["plain", "tiny"]
    assert models("/v1/chat/completions") == models("/v1/responses") == ["tiny"]


def test_the_example_of_a_model_is_shown(pages: RunningServer) -> None:
    content = described(pages)["paths"]["/v2/models/example/infer"]["post"]["requestBody"]["content"]
    (given,) = content["application/json"]["example"]["inputs"]
    assert given["data"] == [[5.1, 3.5, 1.4, 0.2]]
