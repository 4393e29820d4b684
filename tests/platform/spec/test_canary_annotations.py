"""A policy as flags and documents write it: one reader, the same keys."""

import re
from pathlib import Path

import pytest
import yaml

from pilotlight.errors import UsageError
from pilotlight.k8s.names import ANNOTATION_CANARY
from pilotlight.spec.canary_policy import KEYS, CanaryPolicy, Check, parse_block, parse_policy, policy_from_annotations

TOLD = ("compare", "example", "check", "promql", "max", "min")  # whose defaults are told in words
DOCS = Path(__file__).parents[3] / "docs/how-to/canary.md"
EVERYTHING = """\
steps: [10, 50, 100]
bake: 1m30s
interval: 10s
check: [p99_ms<300, error_rate<1%]
promql: {gpu: 'max(gpu_busy{revision="{{revision}}"})'}
max: {gpu: 0.9}
compare: baseline
ratio: 1.5
min-requests: 20
failure-limit: 3
on-no-data: pause
example: {instances: [[1, 2]]}
on-inconclusive: fail
inconclusive-limit: 7
deadline: 2h
auto-promote: false
keep-stable: 1m
dry-run-checks: true
"""
POLICY = CanaryPolicy(
    steps=(10, 50, 100), bake_s=90.0, interval_s=10.0, compare="baseline", ratio=1.5, min_requests=20, failure_limit=3,
    on_no_data="pause", on_inconclusive="fail", inconclusive_limit=7, deadline_s=7200.0, auto_promote=False,
    keep_stable_s=60.0, dry_run_checks=True, example='{"instances": [[1, 2]]}',
    checks=(
        Check("p99_ms", maximum=300.0), Check("error_rate", maximum=0.01),
        Check("gpu", 'max(gpu_busy{revision="{{revision}}"})', maximum=0.9),
    ),
)  # fmt: skip


def test_every_setting_of_a_policy_can_be_written_in_a_document() -> None:
    assert policy_from_annotations({ANNOTATION_CANARY: EVERYTHING}) == POLICY


def test_the_bound_of_the_only_query_may_be_a_number_alone() -> None:
    assert policy_from_annotations({ANNOTATION_CANARY: EVERYTHING.replace("{gpu: 0.9}", "0.9")}) == POLICY


def test_flags_say_the_same_in_their_own_words() -> None:
    flags = {
        "steps": "10%, 50%, 100%", "bake": "90s", "interval": "10s", "check": ("p99_ms<0.3s", "error_rate<0.01"),
        "promql": ('gpu=max(gpu_busy{revision="{{revision}}"})',), "max": ("gpu=0.9",), "min": (), "ratio": 1.5,
        "compare": "baseline", "min-requests": 20, "failure-limit": 3, "on-no-data": "pause", "manual": True,
        "on-inconclusive": "fail", "inconclusive-limit": 7, "deadline": "120m", "keep-stable": "1m",
        "dry-run-checks": True, "example": '{"instances":[[1,2]]}',
    }  # fmt: skip
    assert parse_policy(flags) == POLICY


def test_nothing_asked_for_is_the_defaults_and_a_comparison() -> None:
    assert parse_policy({}) == parse_policy({"steps": None}) == CanaryPolicy(compare="baseline")
    assert policy_from_annotations({}) is None
    assert policy_from_annotations({ANNOTATION_CANARY: ""}) == CanaryPolicy(compare="baseline")


def test_whoever_names_bounds_is_not_compared_unless_asked() -> None:
    assert parse_policy({"check": "p99_ms<300"}).compare == ""


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"steps": "5,25"}, 'steps is "5,25", must be rising percentages that end in 100'),
        ({"steps": [50, 25, 100]}, "steps is 50,25,100, must be rising"),
        ({"steps": [0, 100]}, "steps is 0,100, must be rising"),
        ({"steps": [*range(1, 9), 100]}, "at most 8"),
        ({"steps": True}, "steps is true, must be rising"),
        ({"bake": "soon"}, 'bake is "soon", must be a duration such as 15s or 2m'),
        ({"bake": "-5s"}, 'bake is "-5s", must be a duration'),
        ({"interval": 0}, "interval is 0, must be greater than zero, such as 15s"),
        ({"ratio": 0.5}, "ratio is 0.5, must be a number of at least 1"),
        ({"min-requests": -1}, "min-requests is -1, must be a whole number of at least 0"),
        ({"min-requests": "5"}, 'min-requests is "5", must be a whole number of at least 0'),
        ({"failure-limit": 0}, "failure-limit is 0, must be a whole number of at least 1"),
        ({"on-no-data": "shrug"}, 'on-no-data is "shrug", must be probe or pause or fail or pass'),
        ({"on-no-data": []}, "on-no-data is a list, must be probe or pause or fail or pass"),
        ({"example": "{"}, "example is not JSON: Expecting property name"),
        ({"example": [1]}, "example is a list, must be the body of a request, with one of inputs, instances, messages"),
        ({"example": {"input": "x" * 65_536}}, "example has 65549 bytes, must have 65536 at most"),
        ({"compare": "blue"}, 'compare is "blue", must be baseline'),
        ({"auto-promote": "no"}, 'auto-promote is "no", must be true or false'),
        ({"minRequests": 5}, "minRequests is not a canary setting; did you mean min-requests?"),
        ({"colour": 5}, "colour is not a canary setting; it has steps, bake, interval"),
        ({"check": 5}, "check is 5, must be a string or a list of strings"),
        ({"check": ["p99_ms<3", "p99_ms<4"]}, "check p99_ms is set twice; keep one of them"),
        ({"check": "p99_ms"}, "check p99_ms has no bound; write p99_ms<… or add compare baseline"),
    ],
)  # fmt: skip
def test_an_error_names_the_key_and_the_fix(written: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_policy(written)
    assert str(caught.value).startswith(told) or told in str(caught.value)


@pytest.mark.parametrize("text", ["[1, 2]", "5", "steps: [", "a: 1\na: 2", "--- {}\n--- {}\n"])
def test_a_block_that_is_no_map_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_block(text)


def test_the_examples_of_the_page_can_be_read() -> None:
    blocks = re.findall(r"  canary:\n((?:    .*\n)+)", DOCS.read_text())
    assert blocks
    for block in blocks:
        assert policy_from_annotations({ANNOTATION_CANARY: block})


def test_every_key_and_its_default_stand_on_the_page() -> None:
    rows = dict(re.findall(r"^\| ((?:`[a-z-]+`(?:, )?)+) \|([^|]*)\|", DOCS.read_text(), re.MULTILINE))
    defaults = {key: default.strip() for keys, default in rows.items() for key in re.findall(r"`([a-z-]+)`", keys)}
    assert set(KEYS) <= set(defaults)
    said = {key: yaml.safe_load(default) for key, default in defaults.items() if key in KEYS and key not in TOLD}
    assert parse_policy({**said, "compare": "baseline"}) == CanaryPolicy(compare="baseline")
