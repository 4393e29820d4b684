"""The table of targets: what a target cannot do is refused at the line that asks for it, and nothing else is."""

from pathlib import Path
from typing import Any

import pytest

from pilotlight.contract import LOCAL_CAPABILITIES
from pilotlight.k8s.names import ANNOTATION_TARGET, ANNOTATION_TARGET_OPTIONS
from pilotlight.plan.support.target_support import AVAILABLE, FIELDS, TARGETS, FeatureRow, table
from pilotlight.plan.types import Capabilities
from pilotlight.release.apply import document_text
from pilotlight.release.plan_and_render import Sources, plan_documents, read
from pilotlight.spec.problems import InvalidDocument, Problem, code_texts
from pilotlight.targets.target import NO_GATEWAY

PLAIN = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: iris
  annotations:
    serving.kserve.io/deploymentMode: Standard
spec:
  predictor:
    minReplicas: 1
    model:
      modelFormat: {name: onnx}
      storageUri: s3://models/iris
"""
GRAPH = """\
apiVersion: serving.kserve.io/v1alpha1
kind: InferenceGraph
metadata:
  name: flowers
spec:
  nodes:
    root:
      routerType: Sequence
      steps:
        - serviceName: iris
"""
RAW = "    serving.kserve.io/deploymentMode: Standard\n"
MODEL = PLAIN[PLAIN.index("    model:") :]
FOREIGN = "    containers:\n    - {name: kserve-container, image: 'example.com/server:1'}\n"
FETCHED = FOREIGN.replace("image:", "env: [{name: STORAGE_URI, value: 's3://models/iris'}], image:")
PARK = "    pilotlight.dev/park: 'true'\n"
TABLE = table()
TOKENS = f"    pilotlight.dev/auth-tokens-sha256: {'ab' * 32}\n"


def with_volume(source: str) -> str:
    model = MODEL.replace("    model:\n", "    model:\n      volumeMounts: [{name: v, mountPath: /v}]\n")
    return PLAIN.replace(MODEL, f"    volumes: [{{name: v, {source}}}]\n{model}")


# A document that asks for the feature of each row, and the line that does.
USES: dict[str, tuple[str, str]] = {
    "other images": (PLAIN.replace(MODEL, FOREIGN), "containers:"),
    "several containers": (PLAIN + "    containers: [{name: side, image: 'example.com/side:1'}]\n", "containers:"),
    "several nodes": (PLAIN.replace(MODEL, f"{FOREIGN}    workerSpec: {{containers: [{{name: w, image: i}}]}}\n"),
        "workerSpec:"),
    "model in a local folder": (PLAIN.replace("s3://models/iris", "/models/iris"), "storageUri:"),
    "model in a store, other images": (PLAIN.replace(MODEL, FETCHED), "containers:"),
    "volumes: `hostPath`": (with_volume("hostPath: {path: /data}"), "volumes:"),
    "volumes: claims": (PLAIN.replace("s3://models/iris", "pvc://claim/iris"), "storageUri:"),
    "volumes: files": (with_volume("secret: {secretName: s}"), "volumes:"),
    "MIG slices": (PLAIN + "      resources: {limits: {nvidia.com/mig-1g.10gb: 1}}\n", "resources:"),
    "parking (`pilotlight.dev/park`), P": (PLAIN.replace(RAW, f"{RAW}{PARK}"), "pilotlight.dev/park"),
    "parking (`pilotlight.dev/park`), o": (
        PLAIN.replace(RAW, f"{RAW}{PARK}").replace(MODEL, FOREIGN), "pilotlight.dev/park"),
    "isolation": (PLAIN.replace(RAW, f"{RAW}    pilotlight.dev/isolation: data\n"), "pilotlight.dev/isolation"),
    "scale to zero": (PLAIN.replace("minReplicas: 1", "minReplicas: 0"), "minReplicas:"),
    "several replicas": (PLAIN.replace("minReplicas: 1", "minReplicas: 2"), "minReplicas:"),
    "autoscaling by requests in": (PLAIN + "    scaleMetric: concurrency\n", "scaleMetric:"),
    "autoscaling by requests a": (PLAIN + "    scaleMetric: rps\n", "scaleMetric:"),
    "autoscaling by latency": (PLAIN.replace(RAW, f"{RAW}    pilotlight.dev/triggers: latency=0.5\n"), "triggers"),
    "autoscaling by CPU": (PLAIN + "    scaleMetric: cpu\n", "scaleMetric:"),
    "traffic splits": (PLAIN + "    canaryTrafficPercent: 10\n", "canaryTrafficPercent:"),
    "several components": (PLAIN + "  transformer:\n    containers: [{name: t, image: 'pilotlight/predictor:1'}]\n",
        "transformer:"),
    "services of an InferenceGraph": (GRAPH, "serviceName:"),
    "access rules and rate limits, Pilotlight": (PLAIN.replace(RAW, RAW + TOKENS), "auth-tokens"),
    "access rules and rate limits, other": (PLAIN.replace(RAW, RAW + TOKENS).replace(MODEL, FOREIGN), "auth-tokens"),
    "own load": (PLAIN.replace(RAW, f"{RAW}    pilotlight.dev/expose: LoadBalancer\n"), "pilotlight.dev/expose"),
    "gRPC": (PLAIN + "      protocolVersion: grpc-v2\n", "protocolVersion:"),
}  # fmt: skip
PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "targets.md").read_text(encoding="utf-8")


def use_of(row: FeatureRow) -> tuple[str, str]:
    (use,) = [use for name, use in USES.items() if row.feature.startswith(name)]
    return use


def problems(folder: Path, text: str, target: str, **options: str) -> list[Problem]:
    """The errors of PL371 to PL376; others are about the document itself."""
    file = folder / "service.yaml"
    file.write_text(text)
    capabilities = Capabilities(target=target, target_options=options, access_at_gateway=target != "kubernetes")
    try:
        plan_documents(read(Sources([str(file)])), capabilities)
    except InvalidDocument as error:
        return [problem for problem in error.problems if "PL371" <= problem.code <= "PL376"]
    return []


def test_every_row_refuses_something_and_has_a_use_here() -> None:
    assert all({*row.refused, *row.needs} and {*row.refused, *row.needs} <= {*TARGETS} for row in TABLE)
    assert not [row.feature for row in TABLE if row.refused.keys() & row.needs.keys()]
    assert len(USES) == len(TABLE) == len({id(use_of(row)) for row in TABLE})
    assert all(row.code in code_texts() and row.instead for row in TABLE)
    assert len({row.feature for row in TABLE}) == len(TABLE)
    assert [row.field for row in TABLE] == [*FIELDS]
    assert {row.refused["brev"] for row in TABLE if row.feature.startswith("traffic splits")} == {NO_GATEWAY}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.feature)
def test_a_feature_is_refused_where_the_table_says_so_at_its_line(row: FeatureRow, target: str, tmp_path: Path) -> None:
    text, line = use_of(row)
    why = row.refused.get(target) or row.needs.get(target, ("", ""))[0]
    if not why:
        texts = [*row.refused.values(), row.instead]
        found = problems(tmp_path, text, target)
        assert not [problem for problem in found if any(each in problem.message for each in texts)]
        return
    found = [problem for problem in problems(tmp_path, text, target) if why in problem.message]
    (problem,) = [each for each in found if each.code == (row.code if target in row.refused else "PL376")][:1]
    assert line in text.splitlines()[problem.location.line - 1], problem
    assert problem.location.column > 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_plain_document_fits_every_target(target: str, tmp_path: Path) -> None:
    assert not problems(tmp_path, PLAIN, target)


def test_the_error_names_the_field_the_reason_and_the_fix(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, PLAIN.replace("minReplicas: 1", "minReplicas: 0"), "slurm")
    assert str(problem).removeprefix(str(tmp_path)) == (
        "/service.yaml:9:18: error PL371: spec.predictor.minReplicas: slurm does not support it: a request cannot"
        " wait until "
        "the queue starts a job; use minReplicas: 1, or --target local, kubernetes or docker"
    )


def test_an_option_that_a_feature_needs_is_named(tmp_path: Path) -> None:
    text, _ = USES["other images"]
    (problem,) = problems(tmp_path, text, "slurm")
    assert (problem.code, problem.message.partition("; ")[2]) == ("PL376", "add --target-option container=VALUE")
    assert problems(tmp_path, text, "slurm", container="none") == [problem]
    assert not problems(tmp_path, text, "slurm", container="apptainer")
    several, _ = USES["several components"]
    assert [each.code for each in problems(tmp_path, several, "docker", network="bridge")] == ["PL376"]
    assert not problems(tmp_path, several, "docker", network="host")


def test_a_runtime_with_another_image_is_refused_with_how_to_leave_it_out(tmp_path: Path) -> None:
    theirs = PLAIN.replace("{name: onnx}", "{name: sklearn}") + "      runtime: kserve-sklearnserver\n"
    (problem,) = problems(tmp_path, theirs, "local")
    assert (problem.code, problem.path) == ("PL373", "spec.predictor.model.runtime")
    assert "predictor (--set spec.predictor.model.runtime=null selects one), or" in problem.message


def test_a_target_that_nobody_named_refuses_nothing(tmp_path: Path) -> None:
    assert not problems(tmp_path, USES["other images"][0], "")
    assert not problems(tmp_path, USES["other images"][0], "of-a-plugin")


def test_errors_recommend_targets_that_can_be_named() -> None:
    assert set(AVAILABLE) <= set(TARGETS)
    assert all({*AVAILABLE} - row.refused.keys() for row in TABLE)


def templates(folder: Path, capabilities: Capabilities) -> list[dict[str, Any]]:
    (folder / "service.yaml").write_text(PLAIN)
    (plan,) = plan_documents(read(Sources([str(folder)])), capabilities).plans
    return [dict(work.template["metadata"]["annotations"]) for work in plan.workloads]


def test_pods_of_docker_and_slurm_carry_the_target_and_its_options(tmp_path: Path) -> None:
    docker = Capabilities(target="docker", target_options={"network": "host", "gpus": "0"})
    (annotations,) = templates(tmp_path, docker)
    assert annotations[ANNOTATION_TARGET] == "docker"
    assert annotations[ANNOTATION_TARGET_OPTIONS] == '{"gpus": "0", "network": "host"}'
    (annotations,) = templates(tmp_path, Capabilities(target="slurm"))
    assert annotations[ANNOTATION_TARGET] == "slurm"
    assert ANNOTATION_TARGET_OPTIONS not in annotations


def test_nothing_changes_for_local_and_kubernetes(tmp_path: Path) -> None:
    """A new annotation or a new word in the stored document would be a new revision of every service."""
    (tmp_path / "service.yaml").write_text(PLAIN)
    documents = read(Sources([str(tmp_path)]))
    texts, names = set(), set()
    for target in ("", "local", "kubernetes"):
        capabilities = Capabilities(**{**LOCAL_CAPABILITIES, "target": target})
        (plan,) = plan_documents(documents, capabilities).plans
        names.add(plan.workloads[0].revision)
        texts.add(document_text(documents.services[0], capabilities))
    assert len(texts) == len(names) == 1
    assert '"target":"docker"' in document_text(documents.services[0], Capabilities(target="docker"))


def test_the_page_shows_what_is_refused_and_what_needs_an_option() -> None:
    head, _, *lines = PAGE.partition("## Every feature on every target\n")[2].partition("\n| feature ")[2].splitlines()
    assert head == f"| {' | '.join(TARGETS)} |"
    shown: dict[str, dict[str, str]] = {}
    for line in lines[: lines.index("")] if "" in lines else lines:
        feature, *cells = line.strip("| ").split(" | ")
        assert len(cells) == len(TARGETS), line
        special = {name: cell for name, cell in zip(TARGETS, cells, strict=True) if "**" in cell or "(option" in cell}
        shown |= {feature: special} if special else {}
    assert shown == {
        row.feature: {name: f"**refused**: {why}" for name, why in row.refused.items()}
        | {name: f"{how} (option `{option}`)" for name, (how, option) in row.needs.items()}
        for row in TABLE
    }
