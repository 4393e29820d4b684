"""Profiles as files: what is written is read, and a wrong field is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from pilotlight.errors import UsageError
from pilotlight.simulation.service_times import ColdStart, LlmRates, Profile, ServiceTimes, read_profile

HEAD = {"apiVersion": "pilotlight.dev/v1", "kind": "Profile"}
PROFILE = Profile(
    ServiceTimes((0.1,), 2, {1: (0.1,), 8: (0.4, 0.5)}, {4: (0.2,)}, 8, 0.01, LlmRates(900.0, {1: 60.0, 8: 320.0})),
    {"process": ColdStart({"import": (1.0, 2.0), "load": (3.0, 3.5)}, cpu_s=1.5)},
    "iris", "2026-01-31T12:00:00Z",
)  # fmt: skip


def test_a_written_profile_is_read(tmp_path: Path) -> None:
    PROFILE.write(tmp_path / "profile.json")
    assert read_profile(tmp_path / "profile.json") == PROFILE
    times = json.loads((tmp_path / "profile.json").read_text())["serviceTimes"]
    assert times["byConcurrency"] == {"1": [0.1], "8": [0.4, 0.5]}
    assert times["llm"]["decodeTokensPerSecond"] == {"1": 60.0, "8": 320.0}


def test_a_profile_written_by_hand_may_have_decimals_for_counts_and_no_rates(tmp_path: Path) -> None:
    file, times = tmp_path / "profile.json", {"parallel": 2.0, "maxBatch": 8.0, "byBatch": {"4": [1]}, "llm": {}}
    file.write_text(json.dumps({**HEAD, "serviceTimes": times}))
    assert read_profile(file).service_times == ServiceTimes(parallel=2, max_batch=8, by_batch={4: (1.0,)})


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ([], "Expected `object`, got `array`"),
        ({"kind": "Profile"}, "missing required field `apiVersion`"),
        ({**HEAD, "serviceTimes": {"samples": [0.1, -1]}}, "Expected `float` >= 0.0 - at `$.serviceTimes.samples[1]`"),
        (
            {**HEAD, "serviceTimes": {"byBatch": {"0": [1]}}},
            "Expected `int` >= 1 - at `key` in `$.serviceTimes.byBatch`",
        ),
        ({**HEAD, "coldStarts": {"warm": {"total": [1]}}}, "Invalid enum value 'warm'"),
        ({**HEAD, "coldStarts": {"process": {"a": [1], "b": [1, 2]}}}, "coldStarts.process must be as many seconds"),
        ({**HEAD, "coldStarts": {"process": {"cpuSeconds": 1.0}}}, "coldStarts.process must be as many seconds"),
    ],
)
def test_a_wrong_field_is_named(document: Any, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"profile\.json") as caught:
        read_profile(file)
    assert sentence in str(caught.value)
