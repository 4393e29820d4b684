"""The same request to Triton and to us has the same answer, but for what docs/how-to/migrate-triton.md lists."""

from collections import Counter

import pytest
from tests.differential.conftest import Both
from tests.differential.differences import differences, unlike
from tests.differential.tables import HTTP, RPC

pytestmark = pytest.mark.timeout(1800)  # the first run on a machine downloads a wheel of some hundred megabytes

# What NVIDIA's own examples and tests look for in a sentence; ours may say more around it.
PHRASES_RPC = {
    "infer/model/unknown": "Request for unknown model: 'unknown' is not found",
    "infer/versions/3": "Request for unknown model: 'versions' version 3 is not found",
    "infer/inputs/one-missing": "expected 2 inputs but got 1 inputs for model 'add'",
    "infer/inputs/unknown": "unexpected inference input 'c' for model 'add'",
    "infer/outputs/unknown": "unexpected inference output 'x' for model 'add'",
    "infer/input/datatype-other": "inference input 'b' data-type is 'INT32', but model 'add' expects 'FP32'",
    "load/unknown": "failed to load 'unknown'",
    "infer/model/fails": "the model says no",
}
PHRASES_HTTP = {
    "metadata/unknown": "Request for unknown model: 'unknown' is not found",
    "infer/versions/3": "Request for unknown model: 'versions' version 3 is not found",
    "infer/batch/9": "inference request batch-size must be <= 8 for 'add'",
    "input/shape-other": "unexpected shape for input 'b' for model 'add'",
    "binary/long": "unexpected additional input data for model 'add'",
    "binary/short": "unexpected size for input 'b', expecting 8 additional bytes",
    "binary/length/beyond": "inference header size should be in range",
    "load/unknown": "failed to load 'unknown'",
    "infer/spare/unloaded": "Request for unknown model: 'spare' has no available versions",
    "fails": "the model says no",
}


def unlisted(protocol: str, answers: Both, name: str) -> dict[str, object]:
    found = unlike(*answers[name])
    return {
        aspect: values
        for aspect, values in found.items()
        if not any(each.allows(protocol, name, aspect) for each in differences())
    }


def test_case_names_are_unique() -> None:
    for cases in (HTTP, RPC):
        assert not [name for name, count in Counter(case.name for case in cases).items() if count > 1]


@pytest.mark.parametrize("name", [case.name for case in RPC])
def test_grpc_answers_as_triton_does(rpc_answers: Both, name: str) -> None:
    assert not unlisted("grpc", rpc_answers, name)


@pytest.mark.parametrize("name", PHRASES_RPC)
def test_grpc_says_what_clients_look_for(rpc_answers: Both, name: str) -> None:
    assert [PHRASES_RPC[name] in str(answer["error"]) for answer in rpc_answers[name]] == [True, True]


@pytest.mark.parametrize("name", [case.name for case in HTTP])
def test_http_answers_as_triton_does(http_answers: Both, name: str) -> None:
    assert not unlisted("http", http_answers, name)


@pytest.mark.parametrize("name", PHRASES_HTTP)
def test_http_says_what_clients_look_for(http_answers: Both, name: str) -> None:
    assert [PHRASES_HTTP[name] in str(answer["error"]) for answer in http_answers[name]] == [True, True]


def test_every_listed_difference_is_one(rpc_answers: Both, http_answers: Both) -> None:
    seen = {"grpc": rpc_answers, "http": http_answers}
    found = [
        (protocol, name, aspect)
        for protocol, answers in seen.items()
        for name, both in answers.items()
        for aspect in unlike(*both)
    ]
    idle = [each for each in differences() if not any(each.allows(*one) for one in found)]
    assert not idle, "rows of docs/how-to/migrate-triton.md that no case needs"
