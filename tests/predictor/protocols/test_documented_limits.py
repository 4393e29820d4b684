"""Limits that clients meet stand on the pages of their protocols, with the numbers of the code."""

import pytest
from tests.doc_pages import page_section
from tests.serving import ROOT

from pilotlight_predictor.backends.text.grammar import MAX_REPEATS, MAX_SIZE
from pilotlight_predictor.backends.text.template_limits import MAX_GROWTH, RENDER_S
from pilotlight_predictor.core.generation_params import MAX_BIASES, MAX_STOPS, MAX_TOOLS
from pilotlight_predictor.core.tensors import MAX_STRINGS
from pilotlight_predictor.models.model_version import MAX_CLASSES, MAX_RANKED
from pilotlight_predictor.protocols.json_values import MAX_DEPTH, MAX_FIELDS, MAX_WEIGHT
from pilotlight_predictor.protocols.openai.request import MAX_PARTS, MAX_PROMPTS, MAX_TEXTS, MAX_TOKENS
from pilotlight_predictor.protocols.openai.scores import MAX_REPEATED
from pilotlight_predictor.protocols.plain_predict.codec import MAX_NUMBERS
from pilotlight_predictor.protocols.v2.grpc.infer_methods import MAX_AHEAD
from pilotlight_predictor.protocols.v2.grpc.infer_response import MAX_TYPED, MAX_UNPACKED
from pilotlight_predictor.protocols.v2.request_codec import MAX_DIMS

SECTIONS = {
    "v2": ("docs/reference/http-api.md", "V2 inference over HTTP"),
    "grpc": ("docs/reference/http-api.md", "V2 over gRPC"),
    "generate": ("docs/reference/http-api.md", "generate and generate_stream"),
    "v1": ("docs/reference/http-api.md", "V1 over HTTP"),
    "predict": ("docs/reference/http-api.md", "/predict"),
}
LIMITS = {
    "v2": (MAX_FIELDS, MAX_DIMS, MAX_DEPTH, MAX_STRINGS, MAX_RANKED, MAX_CLASSES),
    "grpc": (MAX_FIELDS, MAX_DIMS, MAX_STRINGS, MAX_TYPED, MAX_UNPACKED, MAX_AHEAD),
    "openai": (
        MAX_WEIGHT,
        MAX_PARTS,
        MAX_PROMPTS,
        MAX_TOKENS,
        MAX_TEXTS,
        MAX_REPEATED,
        MAX_STOPS,
        MAX_BIASES,
        MAX_TOOLS,
        MAX_SIZE,
        MAX_REPEATS,
    ),
    "generate": (MAX_FIELDS, MAX_STRINGS),
    "v1": (MAX_DIMS, MAX_STRINGS, MAX_WEIGHT),
    "predict": (MAX_NUMBERS,),
}


@pytest.mark.parametrize("page", LIMITS)
def test_the_page_of_a_protocol_has_its_limits(page: str) -> None:
    text = page_section(*SECTIONS[page]) if page in SECTIONS else (ROOT / "docs/reference/openai.md").read_text()
    assert [limit for limit in LIMITS[page] if f"{limit:,}" not in text] == []


def test_the_limits_of_chat_templates_are_on_the_page_about_security() -> None:
    row = f"| rendering a chat template | {RENDER_S:g} s, and {MAX_GROWTH >> 20:,} MiB "
    assert row in page_section("docs/security.md", "Limits")
