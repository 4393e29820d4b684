"""simulate on the command line: a document and a trace in, figures and an exit code for scripts out."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call

POISSON = "poisson:rate=2,duration=10m,seed=3"
GIVEN = ("--trace", POISSON, "--service-time", "50ms", "--cold-start", "3s")
IRIS = ("-f", "examples/services/iris.yaml")


def test_a_document_is_simulated_from_its_own_settings(call: Call) -> None:
    done = call("simulate", *IRIS, *GIVEN, "-o", "json")
    assert done.code == 0, done.err
    [result] = json.loads(done.out)["simulations"]
    assert result["method"] == "exact"
    assert result["figures"]["requests"] == pytest.approx(1200, rel=0.1)
    assert result["latency"]["p50"] == pytest.approx(0.05, rel=0.1)
    assert result["figures"]["cold_starts"] >= 1
    assert result["figures"]["replica_seconds"] == pytest.approx(600, rel=0.1)
    assert result == json.loads(call("simulate", *IRIS, *GIVEN, "-o", "json").out)["simulations"][0]


def test_the_table_has_the_parts_of_the_latency_and_what_was_assumed(call: Call) -> None:
    done = call("simulate", *IRIS, "--trace", POISSON)
    words = [line.split()[0] for line in done.out.splitlines() if line and not line.startswith(" ")]
    assert {"requests", "latency", "held", "queued", "served", "replica-seconds"} <= set(words)
    assert "assumed: service time 0.05 s, neither" in done.err
    assert "assumed: cold start 5 s" in done.err


def test_variants_are_compared_side_by_side(call: Call, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("cpuHour: 0.5\ncurrency: EUR\n")
    varied = ("--vary", "spec.predictor.minReplicas=0..1", "--vary", "cold-start=1s,8s", "--prices", str(prices))
    done = call("simulate", *IRIS, *GIVEN[:4], *varied, "--slo", "p99<1s")
    heading, *rows = done.out.splitlines()
    assert "COST EUR" in heading
    assert "SLO" in heading
    assert [row.split("  ")[0] for row in rows] == [
        f"iris-predictor minReplicas={least} cold-start={start}" for least in (0, 1) for start in ("1s", "8s")
    ]
    found = json.loads(call("simulate", *IRIS, *GIVEN[:4], *varied, "-o", "json").out)["simulations"]
    fast, slow, warm, _ = (each["figures"] for each in found)
    assert slow["mean"] > fast["mean"] > warm["mean"]
    assert warm["cold_starts"] == 0
    assert warm["cost"] == pytest.approx(0.5 * 0.1 / 6, rel=0.01)  # ten minutes of 0.1 core


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (("--cold-start", "pilot-light=1s", "--target", "local"), "pilot-light"),
        (("--target", "local"), "pilot-light"),
        (("--cold-start", "pilot-light=1s", "--target", "local", "--start", "process"), "process"),
        (("--cold-start", "4s", "--target", "local"), "process"),  # the profile has no start by a fork
        (("--cold-start", "pilot-light=1s"), "process"),  # on a cluster
    ],
)
def test_replicas_start_as_on_the_target(
    call: Call, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], kind: str
) -> None:
    monkeypatch.delenv("PILOTLIGHT_PILOT_LIGHT", raising=False)
    [result] = json.loads(call("simulate", *IRIS, *GIVEN[:2], *options, "-o", "json").out)["simulations"]
    assert set(result["starts"]) == {kind}
    monkeypatch.setenv("PILOTLIGHT_PILOT_LIGHT", "off")
    [result] = json.loads(call("simulate", *IRIS, *GIVEN[:2], *options, "-o", "json").out)["simulations"]
    assert set(result["starts"]) == {"process"}


def test_replicas_that_start_at_once_share_the_cores(call: Call, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    start = {"process": {"total": [5.0], "cpuSeconds": 2.0}}
    profile.write_text(json.dumps({"apiVersion": "pilotlight.dev/v1", "kind": "Profile", "coldStarts": start}))
    at_once = 'metadata.annotations["autoscaling.knative.dev/activation-scale"]="2"'
    given = ("simulate", *IRIS, *GIVEN[:2], "--profile", str(profile), "--set", at_once, "-o", "json")
    shared, free = (each["held"]["p99"] for each in json.loads(call(*given, "--vary", "cores=1,2").out)["simulations"])
    assert shared == pytest.approx(free + 2.0, abs=0.1)
    [one] = json.loads(call(*given, "--cores", "1").out)["simulations"]
    assert one["held"]["p99"] == shared


def test_several_documents_are_told_apart_by_their_files(call: Call, tmp_path: Path) -> None:
    other = tmp_path / "warm.yaml"
    other.write_text(Path("examples/services/iris.yaml").read_text().replace("minReplicas: 0", "minReplicas: 1"))
    done = call("simulate", *IRIS, "-f", str(other), *GIVEN)
    assert [line.split()[0] for line in done.out.splitlines()] == ["SERVICE", "iris.yaml", "warm.yaml"]


def test_a_condition_that_does_not_hold_ends_with_1_and_its_reason(call: Call) -> None:
    assert call("simulate", *IRIS, *GIVEN, "--assert", "p99<10s", "--assert", "failed_share<=0%").code == 0
    done = call("simulate", *IRIS, *GIVEN, "--assert", "p50<20ms", "--assert", "cold-starts<1")
    assert done.code == 1
    assert "error: iris-predictor: p50 is 0.05 s" in done.err
    assert "must be <20ms" in done.err
    assert "cold_starts is 1, must be <1" in done.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--assert", "p99=2s"), "must be a figure, <, <=, > or >=, and a value"),
        (("--assert", "p99<fast"), "fast must be a time such as 200ms or 2s"),
        (("--assert", "costs<3"), "there is no figure costs; did you mean cost"),
        (("--slo", "cost<3"), "must bound a quantile of the latency from above"),
        (("--vary", "minReplicas"), "must be PATH=VALUES"),
        (("--vary", "a=0..99", "--vary", "b=0..99"), "gives 10000 variants, must be at most 500"),
        (("--cold-start", "warm=2s"), "warm is not a kind of start; there are process, pilot-light, parked"),
        (("--service-time", "fast"), "--service-time fast: must be a duration such as 50ms or 4s"),
        (("--vary", "spec.predictor.minReplicas=x"), "must be"),
    ],
)
def test_wrong_options_get_a_sentence(call: Call, options: tuple[str, ...], sentence: str) -> None:
    done = call("simulate", *IRIS, *GIVEN, *options)
    assert done.code == 2
    assert sentence in done.err


def test_a_document_that_needs_a_cluster_is_simulated_all_the_same(call: Call) -> None:
    done = call("simulate", "-f", "examples/services/deepseek-multi-node.yaml", *GIVEN, "-o", "json")
    assert done.code == 0, done.err
    [result] = json.loads(done.out)["simulations"]
    assert result["figures"]["gpu_hours"] > 0


@pytest.mark.parametrize("prices", ["gpu: 3\n", "gpuHour: cheap\n", "- 3\n", "cpuHour: -1\n"])
def test_a_file_without_prices_gets_a_sentence(call: Call, tmp_path: Path, prices: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(prices)
    done = call("simulate", *IRIS, *GIVEN, "--prices", str(file))
    assert done.code == 2
    assert "write gpuHour: 2.5" in done.err


def test_variants_are_drawn(call: Call, tmp_path: Path) -> None:
    page = tmp_path / "compared.html"
    done = call("simulate", *IRIS, *GIVEN, "--vary", "spec.predictor.minReplicas=0..1", "--plot", str(page))
    assert (done.code, f"drawn: {page}" in done.err) == (0, True), done.err
    assert "Pareto front" in page.read_text()
    assert call("simulate", *IRIS, *GIVEN, "--plot", str(tmp_path / "plot.pdf")).code == 2
