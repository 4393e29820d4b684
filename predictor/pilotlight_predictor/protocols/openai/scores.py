"""Scores of pairs of texts: /score of vLLM; /rerank of vLLM, Jina and Cohere, or of text-embeddings-inference (TEI).

A cross-encoder scores the pairs; for an embedding model it is the cosine of the vectors (docs/reference/openai.md).
"""

import re
from collections.abc import Mapping, Sequence
from time import time
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.generation_params import BadField
from pilotlight_predictor.core.tensors import Array
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.observability.logs import new_request_id
from pilotlight_predictor.protocols.json_values import document_pieces, join_pieces
from pilotlight_predictor.protocols.openai.embeddings import infer_texts
from pilotlight_predictor.protocols.openai.request import MAX_TEXTS
from pilotlight_predictor.protocols.openai.tensors import TextCapabilities
from pilotlight_predictor.server.handler_context import Server

MAX_REPEATED: Final = 1 << 26  # characters of a query, counted for each document: every pair is tokenised
_QUOTED: Final = re.compile("`([^`]*)`")


class Text(Struct, frozen=True):
    """A query or document as an object; fields of its own, such as a title, are not scored."""

    text: str


Many = Annotated[list[str | Text], Meta(min_length=1, max_length=MAX_TEXTS)]
R = TypeVar("R", bound="RankingRequest")


class RankingRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that all requests have. Texts beyond the model's length are cut, as -1 and true say."""

    model: str = ""
    user: str = ""
    priority: int = 0
    truncate_prompt_tokens: Literal[-1] = -1

    def pairs(self) -> tuple[list[str], list[str]]:
        """Return queries and documents; one query is for all documents."""
        raise NotImplementedError

    def document(self, model: str, scores: list[float], usage: Mapping[str, int]) -> Any:
        raise NotImplementedError


class ScoreRequest(RankingRequest, frozen=True, kw_only=True):
    text_1: str | Many
    text_2: str | Many

    def pairs(self) -> tuple[list[str], list[str]]:
        first, second = (_texts([each] if isinstance(each, str) else each) for each in (self.text_1, self.text_2))
        if len(first) not in {1, len(second)}:
            raise BadField("text_1", f"text_1 has {len(first)} texts, must have 1 or as many as text_2: {len(second)}")
        return first, second

    def document(self, model: str, scores: list[float], usage: Mapping[str, int]) -> Any:
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
        head = {"id": f"score-{new_request_id()}", "object": "list", "created": int(time()), "model": model}
        return {**head, "data": data, "usage": usage}


class RerankRequest(RankingRequest, frozen=True, kw_only=True):
    query: str | Text
    documents: Many
    top_n: Annotated[int, Meta(ge=1)] = MAX_TEXTS
    return_documents: bool = True

    def pairs(self) -> tuple[list[str], list[str]]:
        return _texts([self.query]), _texts(self.documents)

    def document(self, model: str, scores: list[float], usage: Mapping[str, int]) -> Any:
        texts = _texts(self.documents)
        results = [
            {"index": index, "relevance_score": scores[index]}
            | ({"document": {"text": texts[index]}} if self.return_documents else {})
            for index in _ranked(scores)[: self.top_n]
        ]
        return {"id": f"rerank-{new_request_id()}", "model": model, "results": results, "usage": usage}


class TeiRerankRequest(RankingRequest, frozen=True, kw_only=True):
    query: str
    texts: Many
    truncate: bool = True
    return_text: bool = False

    def pairs(self) -> tuple[list[str], list[str]]:
        return [self.query], _texts(self.texts)

    def document(self, model: str, scores: list[float], usage: Mapping[str, int]) -> Any:
        texts = _texts(self.texts)
        return [
            {"index": index, "score": scores[index]} | ({"text": texts[index]} if self.return_text else {})
            for index in _ranked(scores)
        ]


def read_score(document: dict[str, Any]) -> RankingRequest:
    return _convert(document, ScoreRequest)


def read_rerank(document: dict[str, Any]) -> RankingRequest:
    return _convert(document, TeiRerankRequest if "texts" in document else RerankRequest)


async def rank(
    server: Server, request: HttpRequest, served: ModelVersion, can: TextCapabilities, body: RankingRequest
) -> HttpResponse:
    queries, documents = body.pairs()
    count = len(documents)
    if len(queries) == 1:
        if len(queries[0]) * count > MAX_REPEATED:
            name = "text_1" if isinstance(body, ScoreRequest) else "query"
            problem = f"for {count} documents, their product must be at most {MAX_REPEATED}; send fewer or shorter ones"
            raise BadField(name, f"{name} has {len(queries[0])} characters {problem}")
        queries = queries * (count if can.ranks else 1)

    def encode(rows: Array, tokens: int) -> list[Buffer]:
        scores = rows.ravel()
        if not can.ranks:  # cosines
            unit = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
            scores = (unit[: len(queries)] * unit[len(queries) :]).sum(1)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return join_pieces(document_pieces(body.document(served.name, scores.astype(float).tolist(), usage)))

    if can.ranks:
        query, document, output = can.ranks
        return await infer_texts(server, request, served, {query: queries, document: documents}, output, encode)
    assert can.embeds is not None
    return await infer_texts(server, request, served, {can.embeds[0]: queries + documents}, can.embeds[1], encode)


def _ranked(scores: Sequence[float]) -> list[int]:
    """Return the indices, best score first; NaN last."""
    return [int(index) for index in np.argsort(-np.array(scores), kind="stable")]


def _texts(items: Sequence[str | Text]) -> list[str]:
    return [item if isinstance(item, str) else item.text for item in items]


def _convert(document: Mapping[str, Any], kind: type[R]) -> R:
    try:
        return msgspec.convert({name: value for name, value in document.items() if value is not None}, kind)
    except msgspec.ValidationError as error:
        field = _QUOTED.findall(str(error))[-1].removeprefix("$.")
        raise BadField(field, f"{field[:100]}: {str(error).partition(' - at ')[0][:200]}") from None
