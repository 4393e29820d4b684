"""The waterfall of a start: phases read from logs, made whole, and drawn from a start that happened."""

import json
from pathlib import Path

import pytest
from bench.load import BenchError
from bench.waterfall import Start, document, draw, middle, own_phases, stamped_phases, whole

READY = json.dumps(
    {"event": "ready", "phases": {"boot": 0.05, "listen": 0.03, "import": 0.1, "load": 0.01, "total": 0.2}},
    separators=(",", ":"),
)


def start(ready_s: float) -> Start:
    return Start(ready_s, ready_s, {"boot": ready_s / 4, "listen": ready_s / 4, "answer": ready_s / 2})


def test_our_phases_come_from_the_line_that_says_ready() -> None:
    assert own_phases(f"a warning\n{READY}\n") == {"boot": 0.05, "listen": 0.03, "import": 0.1, "load": 0.01}


def test_stamps_become_phases_between_them() -> None:
    found = stamped_phases("stamps 0.25 0.5 1.5\nINFO: started\n")
    assert found == {"boot": 0.25, "import onnxruntime": 0.25, "import kserve": 1.0}


@pytest.mark.parametrize("read", [own_phases, stamped_phases])
def test_a_log_without_phases_is_told(read: object) -> None:
    assert callable(read)
    with pytest.raises(BenchError, match="log"):
        read("nothing of interest\n")


def test_what_nobody_told_of_is_the_last_phase() -> None:
    phases = whole({"boot": 0.25, "load": 0.5}, 1.0, "answer")
    assert list(phases) == ["boot", "load", "answer"]
    assert sum(phases.values()) == 1.0


def test_the_start_in_the_middle_is_one_that_happened() -> None:
    starts = [start(0.3), start(0.1), start(0.2)]
    assert middle(starts) is starts[2]
    made = document({"pilotlight": starts}, "2026-01-31T12:00:00+00:00", {"cpu": "some"})
    assert made["servers"]["pilotlight"]["ready_s"] == {"least": 0.1, "median": 0.2}
    assert made["servers"]["pilotlight"]["listens_s"] == {"least": 0.05, "median": 0.1}


def test_the_same_figures_give_the_same_picture(tmp_path: Path) -> None:
    starts = {"pilotlight": [start(0.2)], "kserve": [start(1.2)]}
    for name in ("a.svg", "b.svg"):
        draw(starts, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"KServe" in (tmp_path / "a.svg").read_bytes()
