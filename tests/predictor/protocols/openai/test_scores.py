"""/rerank and /score over HTTP, as clients of vLLM, Cohere, Jina and TEI send them: a cross-encoder of transformers, a
Python model with a query and a document, and an embedding model."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.platform.client.conftest import Ask, ask_async, ask_blocking
from tests.predictor.backends.huggingface.conftest import answers, load_folder, request
from tests.predictor.backends.huggingface.tiny_tasks import MOODS, write_bert
from tests.predictor.protocols.openai.conftest import START_S
from tests.serving import RunningServer

from pilotlight.client import RankedDocument, ResponseError
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.protocols.openai.request import MAX_TEXTS
from pilotlight_predictor.protocols.openai.tensors import text_capabilities

pytest.importorskip("transformers")
# Words in common.
COMMON = """
import numpy as np


def predict(query, document):
    pairs = [(a.split(), b.split()) for a, b in zip(query.ravel(), document.ravel())]
    return {"score": np.array([[len(set(a) & set(b))] for a, b in pairs], dtype=np.float32)}
"""
COMMON_CONFIG = """
backend: "python"
max_batch_size: 64
input [
  { name: "query" data_type: TYPE_STRING dims: [ 1 ] }, { name: "document" data_type: TYPE_STRING dims: [ 1 ] }
]
output [ { name: "score" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
QUERY, TEXTS = "who lives in paris?", ["a dog", "Anna lives in Paris", "the film is bad. the server sleeps"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]) -> RunningServer:
    models = tmp_path_factory.mktemp("models")
    write_bert(models / "ranks" / "1", "ForSequenceClassification", num_labels=1)
    write_bert(models / "moods" / "1", "ForSequenceClassification", id2label=MOODS)
    write_bert(models / "vectors" / "1", "Model")
    (models / "common" / "1").mkdir(parents=True)
    (models / "common" / "1" / "model.py").write_text(COMMON)
    (models / "common" / "config.pbtxt").write_text(COMMON_CONFIG)
    server = serve_module(models, "--threads", "1", "--warmup", "none", ready=False)
    server.wait_until(lambda: server.get("/v2/health/ready").status == 200, "ready", START_S)
    server.models = models  # type: ignore[attr-defined]
    return server


def post(server: RunningServer, path: str, **body: Any) -> Any:
    answer = server.post(path, body)
    assert answer.status == 200, answer.body
    return answer.json()


@pytest.fixture(scope="module")
def scores(server: RunningServer) -> list[float]:
    instance = load_folder(server.models / "ranks" / "1")  # type: ignore[attr-defined]
    return list(answers(instance, request(text=[QUERY] * 3, text_pair=TEXTS))[0]["score"])


@pytest.mark.parametrize("path", ["/v1/rerank", "/openai/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_come_best_first(server: RunningServer, scores: list[float], path: str) -> None:
    answer = post(server, path, model="ranks", query=QUERY, documents=[TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]])
    order = sorted(range(3), key=lambda index: -scores[index])
    assert answer["results"] == [
        {"index": i, "relevance_score": pytest.approx(scores[i], abs=1e-4), "document": {"text": TEXTS[i]}}
        for i in order
    ]
    assert answer["model"] == "ranks"
    assert answer["id"].startswith("rerank-")
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 30


def test_top_n_and_return_documents_shorten_the_answer(server: RunningServer, scores: list[float]) -> None:
    shorter = {"query": {"text": QUERY}, "documents": TEXTS, "top_n": 2, "return_documents": False, "rank_fields": None}
    results = post(server, "/v1/rerank", model="ranks", **shorter)["results"]
    assert [set(result) for result in results] == [{"index", "relevance_score"}] * 2
    assert results[0]["index"] == int(np.argmax(scores))


def test_texts_are_ranked_in_the_format_of_tei(server: RunningServer, scores: list[float]) -> None:
    body = {"query": QUERY, "texts": TEXTS, "model": "ranks", "truncate": True}
    best = int(np.argmax(scores))
    assert post(server, "/rerank", **body)[0] == {"index": best, "score": pytest.approx(scores[best], abs=1e-4)}
    assert post(server, "/rerank", **body, return_text=True)[0]["text"] == TEXTS[best]


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_pairs_are_scored_one_to_many_and_each_to_its_own(
    server: RunningServer, scores: list[float], path: str
) -> None:
    many = post(server, path, model="ranks", text_1=QUERY, text_2=TEXTS)
    assert [row["score"] for row in many["data"]] == pytest.approx(scores, abs=1e-4)
    assert [(row["index"], row["object"]) for row in many["data"]] == [(0, "score"), (1, "score"), (2, "score")]
    each = post(server, path, model="ranks", text_1=[QUERY, QUERY], text_2=TEXTS[:2])
    assert [row["score"] for row in each["data"]] == pytest.approx(scores[:2], abs=1e-4)
    one = post(server, path, model="ranks", text_1=QUERY, text_2=TEXTS[0])
    assert (one["object"], one["data"][0]["score"]) == ("list", pytest.approx(scores[0], abs=1e-4))


def test_a_python_model_with_query_and_document_is_asked_in_few_batches(server: RunningServer) -> None:
    documents = [
        f"x{n} " * (n % 9 + 1) + ("paris lives " if n == 70 else "lives " if n == 3 else "") for n in range(100)
    ]
    answer = post(server, "/v1/rerank", model="common", query="anna lives in paris", documents=documents, top_n=2)
    assert [(row["index"], row["relevance_score"]) for row in answer["results"]] == [(70, 2.0), (3, 1.0)]
    stats = server.get("/v2/models/common/stats").json()["model_stats"][0]
    assert (stats["inference_count"], stats["execution_count"]) == (100, 2)


def test_an_embedding_model_scores_by_the_cosine(server: RunningServer) -> None:
    texts = [QUERY, *TEXTS]
    rows = post(server, "/v1/embeddings", model="vectors", input=texts)
    vectors = np.array([row["embedding"] for row in rows["data"]])
    answer = post(server, "/v1/score", model="vectors", text_1=QUERY, text_2=TEXTS)
    assert [row["score"] for row in answer["data"]] == pytest.approx((vectors[1:] @ vectors[0]).tolist(), abs=1e-4)
    assert answer["usage"] == rows["usage"]


@pytest.mark.parametrize("ask", [ask_blocking, lambda *a, **k: asyncio.run(ask_async(*a, **k))])
def test_both_clients_rank_and_score(server: RunningServer, scores: list[float], ask: Ask) -> None:
    order = sorted(range(3), key=lambda index: -scores[index])
    ranked = ask(server.url, "rerank", QUERY, tuple(TEXTS), model="ranks")
    assert ranked == [RankedDocument(i, pytest.approx(scores[i], abs=1e-4), TEXTS[i]) for i in order]
    assert ask(server.url, "rerank", QUERY, TEXTS, model="ranks", top_n=1) == ranked[:1]
    np.testing.assert_allclose(ask(server.url, "score", QUERY, TEXTS, model="ranks"), scores, atol=1e-4)
    np.testing.assert_allclose(ask(server.url, "score", [QUERY], TEXTS[0], model="ranks"), scores[:1], atol=1e-4)
    with pytest.raises(ResponseError, match="'moods' does not score pairs of texts"):
        ask(server.url, "rerank", QUERY, TEXTS, model="moods")


def test_models_that_score_are_listed(server: RunningServer) -> None:
    listed = {model["id"] for model in server.get("/v1/models").json()["data"]}
    assert listed == {"ranks", "common", "vectors"}


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("rerank", {"documents": ["a"]}, "query", "query: Object missing required field"),
        ("rerank", {"query": "a", "documents": []}, "documents", "documents: Expected `array` of length >= 1"),
        ("rerank", {"query": "a", "documents": [1]}, "documents[0]", "Expected `str | object`, got `int`"),
        ("rerank", {"query": "a", "documents": ["a"] * (MAX_TEXTS + 1)}, "documents", "length <= 2048"),
        ("rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n", "top_n: Expected `int` >= 1"),
        ("rerank", {"query": "a", "documents": ["a"], "raw": 1}, "raw", "raw: Object contains unknown field"),
        ("rerank", {"query": "a" * 99_999, "documents": ["a"] * 999}, "query", "query has 99999 characters for 999"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1", "text_1 has 2 texts, must have 1 or as many"),
        ("score", {"text_1": "a", "text_2": 3}, "text_2", "text_2: Expected `str | array`, got `int`"),
        ("score", {"text_1": "a", "text_2": "b", "model": "moods"}, "model", "'moods' does not score pairs of texts"),
    ],
)
def test_a_bad_request_names_its_field(
    server: RunningServer, path: str, body: dict[str, Any], param: str, message: str
) -> None:
    answer = server.post(f"/v1/{path}", {"model": "ranks", **body})
    error = answer.json()["error"]
    assert (answer.status, error["param"]) == (400, param)
    assert message in error["message"]


def test_a_model_without_a_name_must_be_the_only_one(server: RunningServer) -> None:
    error = server.post("/v1/score", {"text_1": "a", "text_2": "b"}).json()["error"]
    assert "must be one of the models that score pairs of texts: common, ranks, vectors" in error["message"]
    error = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}).json()["error"]
    assert error["message"] == "no model of this server can chat; GET /v2/models lists them"
    assert error["code"] == "task_not_supported"


def test_two_texts_and_one_score_are_the_tensors_of_a_ranking_model() -> None:
    query, document = TensorSpec("query", "BYTES", (-1, 1)), TensorSpec("document", "BYTES", (-1, 1))
    score, label = TensorSpec("score", "FP32", (-1,)), TensorSpec("label", "BYTES", (-1,))
    other = TensorSpec("threshold", "FP32", (1,))
    assert text_capabilities([query, document], [score]).ranks == (query, document, score)
    assert text_capabilities([query, document, other], [score]).ranks is None
    assert text_capabilities([query, document], [score, label]).ranks is None
    assert text_capabilities([query, document], [TensorSpec("scores", "FP32", (-1, 3))]).ranks is None
