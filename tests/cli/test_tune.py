"""tune on the command line: settings that meet an objective, the evidence for them, and the document rewritten."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import ROOT, Call

TRACE = ("--trace", "poisson:rate=0.01,duration=20m,seed=3", "--service-time", "80ms", "--cold-start", "4s")
GIVEN = (*TRACE, "--vary", "spec.predictor.minReplicas=0..2")


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "service.yaml"
    path.write_text(
        (ROOT / "examples/services/iris.yaml").read_text().replace("minReplicas: 0", "minReplicas: 0  # idle")
    )
    return path


def test_the_cheapest_settings_that_meet_the_objective_are_proposed(call: Call, document: Path) -> None:
    done = call("tune", "-f", str(document), *GIVEN, "--slo", "p99<1s", "-o", "json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert not found["present"]["meets"]  # every other request waits for a start
    assert found["proposed"]["meets"]
    assert found["proposed"]["variant"] == {"spec.predictor.minReplicas": "1"}
    assert {each["variant"].get("spec.predictor.minReplicas") for each in found["points"]} == {None, "0", "1", "2"}
    cheaper = [each for each in found["points"] if each["replica-seconds"] < found["proposed"]["replica-seconds"]]
    assert cheaper
    assert not any(each["meets"] for each in cheaper)
    for each in found["points"]:
        better = [
            other for other in found["points"]
            if other["replica-seconds"] <= each["replica-seconds"] and other["figure"] < each["figure"]
        ]  # fmt: skip
        assert not (each["pareto"] and better)


def test_an_objective_that_scale_to_zero_meets_saves_replicas(call: Call, document: Path) -> None:
    document.write_text(document.read_text().replace("minReplicas: 0", "minReplicas: 2"))
    done = call("tune", "-f", str(document), *GIVEN, "--slo", "p99<5s", "-o", "json")
    found = json.loads(done.out)
    assert found["proposed"]["variant"]["spec.predictor.minReplicas"] == "0"
    assert found["proposed"]["replica-seconds"] < found["present"]["replica-seconds"] / 2


def test_the_proposal_is_written_into_the_document_and_its_comments_stay(call: Call, document: Path) -> None:
    before = document.read_text()
    done = call("tune", "-f", str(document), *GIVEN, "--slo", "p99<1s", "--write")
    assert done.code == 0
    assert document.read_text() == before.replace("minReplicas: 0  # idle", "minReplicas: 1  # idle")
    assert f"{document}: spec.predictor.minReplicas = 1" in done.err
    again = json.loads(call("tune", "-f", str(document), *GIVEN, "--slo", "p99<1s", "-o", "json").out)
    assert again["proposed"]["variant"] == {}


def test_the_axes_of_the_command_line_are_searched_instead(call: Call, document: Path) -> None:
    varied = ("--vary", "start=process,pilot-light", "--cold-start", "pilot-light=100ms")
    done = call("tune", "-f", str(document), *TRACE, *varied, "--slo", "p99<1s", "--write", "-o", "json")
    assert json.loads(done.out)["proposed"]["variant"] == {"start": "pilot-light"}
    assert "# idle" in document.read_text()


def test_an_objective_out_of_reach_ends_with_1_and_the_nearest(call: Call, document: Path) -> None:
    done = call("tune", "-f", str(document), *GIVEN, "--slo", "p99<10ms", "--write")
    assert done.code == 1
    assert "nothing that was tried meets p99<10ms; the nearest has 0.0" in done.err
    assert "minReplicas: 0" in document.read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "--slo is missing"),
        (("--slo", "p99<1s", "--minimize", "cost"), "--minimize cost needs prices"),
        (("--slo", "p99<1s", "--minimize", "gpu-hours"), "its replicas have no GPUs"),
        (("--slo", "p99<1s", "-f", "examples/services/canary.yaml"), "tune takes one -f FILE"),
    ],
)
def test_wrong_options_get_a_sentence(call: Call, document: Path, options: tuple[str, ...], sentence: str) -> None:
    done = call("tune", "-f", str(document), *GIVEN, *options)
    assert done.code == 2
    assert sentence in done.err


def test_the_lower_bound_the_target_and_the_window_are_searched_by_default(call: Call, document: Path) -> None:
    trace = ("--trace", "poisson:rate=0.05,duration=3m", *TRACE[2:])
    points = json.loads(call("tune", "-f", str(document), *trace, "--slo", "p99<1s", "-o", "json").out)["points"]
    searched = {path for each in points for path in each["variant"]}
    window = 'metadata.annotations["autoscaling.knative.dev/window"]'
    assert searched == {"spec.predictor.minReplicas", "spec.predictor.scaleTarget", window}


def test_what_was_tried_is_drawn(call: Call, document: Path, tmp_path: Path) -> None:
    page = tmp_path / "tried.html"
    done = call("tune", "-f", str(document), *GIVEN, "--slo", "p99<1s", "--plot", str(page))
    assert (done.code, f"drawn: {page}" in done.err) == (0, True), done.err
    assert "Pareto front" in page.read_text()
    assert "minReplicas=2" in page.read_text()
