"""Annotations under our own domain: a slip in one that closes a door must not leave it open."""

import io

import pytest

from pilotlight.k8s.names import (
    ACCESS_ANNOTATIONS,
    ANNOTATION_CANARY,
    ANNOTATION_GPU_RESIDENCE,
    ANNOTATION_ISOLATION,
    ANNOTATION_MODEL_NAMES,
    ANNOTATION_PARK,
    CATALOGUE_ANNOTATIONS,
    COMPONENT_ANNOTATIONS,
    SERVICE_ANNOTATIONS,
)
from pilotlight.spec.annotation_checks import CHOICES
from pilotlight.spec.load_documents import load

SERVICE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: iris
  annotations: {{{on_service}}}
spec:
  predictor:
    annotations: {{{on_component}}}
    model:
      modelFormat: {{name: sklearn}}
      storageUri: s3://bucket/iris
"""
RUNTIME = """\
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata:
  name: mine
  annotations: {{{annotation}}}
spec:
  containers: [{{name: main, image: a}}]
"""


def problems_of(text: str) -> list[str]:
    return [str(found).removeprefix("<stdin>:") for found in load(["-"], stdin=io.StringIO(text)).problems.items]


def written(*names: str) -> str:
    return ", ".join(f'{name}: "1"' for name in names)


@pytest.mark.parametrize(
    ("slip", "told"),
    [
        ("auth-tokens", "is not a Pilotlight annotation; did you mean pilotlight.dev/auth-tokens-sha256?"),
        ("auth-jwt-isuer", "is not a Pilotlight annotation; did you mean pilotlight.dev/auth-jwt-issuer?"),
        ("Rate-Limit", "is not a Pilotlight annotation; did you mean pilotlight.dev/rate-limit?"),
        ("predictor", "is not a Pilotlight annotation; known: pilotlight.dev/auth-tokens-sha256, "),
    ],
)
def test_a_misspelt_annotation_of_ours_is_an_error_at_its_place(slip: str, told: str) -> None:
    name = f"pilotlight.dev/{slip}"
    found = problems_of(SERVICE.format(on_service=written(name), on_component=""))
    assert len(found) == 1
    assert found[0].startswith(f'5:17: error PL115: metadata.annotations["{name}"]: {told}')


def test_an_annotation_about_access_does_nothing_on_a_component_and_is_refused_there() -> None:
    name = "pilotlight.dev/auth-tokens-sha256"
    (found,) = problems_of(SERVICE.format(on_service="", on_component=written(name)))
    assert found.startswith(f'8:19: error PL115: spec.predictor.annotations["{name}"]: has no effect here; move it to ')


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("auth-tokens-sha256", "secret", "must be SHA-256 in hex of each token, separated by commas: printf %s TOKEN"),
        ("auth-tokens-sha256", "${HASH}", "must be SHA-256 in hex of each token, separated by commas: printf %s TOKEN"),
        ("auth-jwt-issuer", "https://issuer", "needs pilotlight.dev/auth-jwt-jwks with the signing keys"),
        ("auth-jwt-jwks", "{}", "= {}, must be a JWKS document"),
        ("rate-limit", "often", "= often, must be requests per time such as 100/1m"),
    ],
)
def test_an_annotation_about_access_that_cannot_be_read_is_an_error_at_its_place(
    name: str, value: str, told: str
) -> None:
    (found,) = problems_of(SERVICE.format(on_service=f'pilotlight.dev/{name}: "{value}"', on_component=""))
    assert f'error PL118: metadata.annotations["pilotlight.dev/{name}"]: {told}' in found
    assert found.startswith("5:")
    assert found.endswith("; --env substitutes ${…}") == (value == "${HASH}")
    assert name == "rate-limit" or "secret" not in found.partition("PL118")[2]


def test_all_that_mean_something_pass_and_so_do_those_of_others() -> None:
    valued = (*ACCESS_ANNOTATIONS, ANNOTATION_CANARY, ANNOTATION_GPU_RESIDENCE, *CHOICES)
    texts = [name for name in SERVICE_ANNOTATIONS if name not in valued]
    service = written(*texts, "example.com/auth-tokens")
    assert not problems_of(SERVICE.format(on_service=service, on_component=written(*COMPONENT_ANNOTATIONS, "team")))
    assert not problems_of(
        RUNTIME.format(annotation=written(*(name for name in CATALOGUE_ANNOTATIONS if name not in CHOICES)))
    )


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("steps: 5,25", 'steps is "5,25", must be rising percentages that end in 100, at most 8, such as 5,25,50,100'),
        ("minRequests: 5", "minRequests is not a canary setting; did you mean min-requests?"),
        ("check: p98_ms<3", 'the check "p98_ms<3" uses p98_ms, which is not a metric; did you mean p99_ms?'),
        ("check: [", "line 2 of it: not valid YAML"),
    ],
)
def test_a_canary_that_cannot_be_read_is_an_error_at_its_place(block: str, told: str) -> None:
    name = "pilotlight.dev/canary"
    (found,) = problems_of(SERVICE.format(on_service=f'{name}: "{block}"', on_component=""))
    assert found.startswith(f'5:40: error PL116: metadata.annotations["{name}"]: {told}')


def test_a_canary_that_can_be_read_passes() -> None:
    block = "pilotlight.dev/canary: \"{steps: '10,100', check: [p99_ms<300, error_rate<1%], compare: baseline}\""
    assert not problems_of(SERVICE.format(on_service=block, on_component=""))


@pytest.mark.parametrize(("value", "wrong"), [('"true"', False), ('"false"', False), ("yes please", True)])
def test_parking_is_true_or_false(value: str, wrong: bool) -> None:
    found = problems_of(SERVICE.format(on_service=f"{ANNOTATION_PARK}: {value}", on_component=""))
    assert [each.partition(": ")[2] for each in found] == (
        ['error PL117: metadata.annotations["pilotlight.dev/park"]: = yes please, must be "true" or "false"']
        if wrong
        else []
    )


@pytest.mark.parametrize(("value", "wrong"), [("30s", False), ("1m30s", False), ("30", True), ("-1s", True)])
def test_the_residence_on_a_gpu_is_a_duration(value: str, wrong: bool) -> None:
    found = problems_of(SERVICE.format(on_service=f'{ANNOTATION_GPU_RESIDENCE}: "{value}"', on_component=""))
    message = f'error PL117: metadata.annotations["pilotlight.dev/gpu-residence"]: = {value}, must be a duration'
    assert [each.partition(": ")[2] for each in found] == ([f'{message} such as "30s"'] if wrong else [])


@pytest.mark.parametrize(("value", "wrong"), [("data", False), ("sandbox", False), ("none", True)])
def test_isolation_is_data_or_sandbox(value: str, wrong: bool) -> None:
    found = problems_of(SERVICE.format(on_service=f"{ANNOTATION_ISOLATION}: {value}", on_component=""))
    sentence = 'error PL117: metadata.annotations["pilotlight.dev/isolation"]: = none, must be "data" or "sandbox"'
    assert [each.partition(": ")[2] for each in found] == ([sentence] if wrong else [])


@pytest.mark.parametrize(("value", "wrong"), [('""', False), ('"llama, meta/Llama-3.1:8b"', False), ('"a b, c"', True)])
def test_names_of_models_are_words_separated_by_commas(value: str, wrong: bool) -> None:
    found = problems_of(SERVICE.format(on_service=f"{ANNOTATION_MODEL_NAMES}: {value}", on_component=""))
    assert ["= a b, c, must be names of models separated by commas" in each for each in found] == [True] * wrong


def test_a_slip_in_a_runtime_is_told_too() -> None:
    found = problems_of(RUNTIME.format(annotation=written("pilotlight.dev/predicter")))
    assert ["did you mean pilotlight.dev/predictor?" in each for each in found] == [True]
