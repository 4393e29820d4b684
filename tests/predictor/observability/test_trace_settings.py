"""Trace settings and sampling, without a server."""

from typing import Any

import pytest

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.observability.request_traces import Sampler, apply_changes, as_triton, trace_settings


def sampler(**values: Any) -> Sampler:
    return Sampler(trace_settings(apply_changes({}, {"trace_file": "t", "trace_level": ["TIMESTAMPS"], **values})))


def test_they_are_told_as_triton_tells_them() -> None:
    assert as_triton({}) == {
        "trace_file": "",
        "trace_level": ["OFF"],
        "trace_rate": "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_mode": "triton",
    }


def test_a_change_keeps_the_rest_and_none_takes_back() -> None:
    first = apply_changes({}, {"trace_rate": "5", "trace_level": ["TIMESTAMPS", "TENSORS"], "trace_file": ["t.json"]})
    assert as_triton(apply_changes(first, {"trace_rate": None}))["trace_rate"] == "1000"
    assert as_triton(first)["trace_level"] == ["TIMESTAMPS", "TENSORS"]
    assert as_triton(first)["trace_file"] == "t.json"


@pytest.mark.parametrize(
    "asked",
    [
        {"trace_rate": "0"},
        {"trace_rate": "many"},
        {"trace_rate": True},
        {"trace_rate": ["1", "2"]},
        {"trace_rate": "9" * 30},
        {"trace_count": "-2"},
        {"log_frequency": -1},
        {"trace_level": []},
        {"trace_level": ["LOUD"]},
        {"trace_level": ["OFF", "TENSORS"]},
        {"trace_level": 1},
        {"trace_file": "../t"},
        {"trace_file": "/etc/passwd"},
        {"trace_file": ".."},
        {"trace_file": 1},
        {"trace_mode": "opentelemetry"},
        {"tracefile": "t"},
    ],
)
def test_what_is_no_setting_is_refused_by_name(asked: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(asked))):
        apply_changes({}, asked)


def test_every_so_many_are_taken_until_the_count_is_used_up() -> None:
    found = sampler(trace_rate="3", trace_count="2")
    assert [found.sample() for _ in range(12)] == [False, False, True, False, False, True] + [False] * 6


def test_a_count_of_none_is_off() -> None:
    assert not trace_settings(
        apply_changes({}, {"trace_file": "t", "trace_level": "TIMESTAMPS", "trace_count": 0})
    ).active
    assert not trace_settings(apply_changes({}, {"trace_level": "TIMESTAMPS"})).active
    assert not trace_settings(apply_changes({}, {"trace_file": "t"})).active


def test_files_are_numbered_where_each_has_so_many() -> None:
    found = sampler(trace_rate=1, log_frequency=2)
    names = []
    for _ in range(5):
        found.sample()
        names.append(found.file_name)
    assert names == ["t.0", "t.0", "t.1", "t.1", "t.2"]
