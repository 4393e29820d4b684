"""Every example service, in every mode that fits it, becomes what people have read. UPDATE_GOLDEN=1 writes it anew."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.conftest import Call
from tests.judges.verdict import assert_valid

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "services"
KSERVE = 'metadata.annotations["serving.kserve.io/deploymentMode"]'
OME = 'spec.engine.annotations["ome.io/deploymentMode"]'

# By the name of their golden files: an example, and what makes another mode of it.
CASES: dict[str, tuple[str, ...]] = {
    **{path.stem: (path.name,) for path in sorted(EXAMPLES.glob("*.yaml"))},
    "iris-raw": ("iris.yaml", "--default-mode", "raw", "--set", "spec.predictor.minReplicas=1"),
    "iris-stateful": ("iris.yaml", "--set", f"{KSERVE}=Stateful", "--set", "spec.predictor.minReplicas=1",
                      "--set", "spec.predictor.scaleMetric=null", "--set", "spec.predictor.scaleTarget=null"),
    "flowers-sklearn-serverless": ("flowers-sklearn.yaml", "--set", f"{KSERVE}=Serverless",
                                   "--set", "spec.predictor.scaleMetric=concurrency"),
    "llama-chat-serverless": ("llama-chat.yaml", "--set", "spec.engine.minReplicas=0", "--set", "spec.kedaConfig=null"),
    "flowers-graph-raw": ("flowers-graph.yaml", "--default-mode", "raw"),
    "deepseek-multi-node-ray": ("deepseek-multi-node.yaml", "--set", f"{OME}=MultiNodeRayVLLM"),
    "job-serverless": ("job-stateful.yaml", "--set", f"{OME}=Serverless", "--set", "spec.engine.minReplicas=0"),
}  # fmt: skip


def compare(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", CASES)
def test_an_example_renders_to_its_golden_file_and_the_cluster_would_take_it(name: str, call: Call) -> None:
    file, *flags = CASES[name]
    done = call("render", "-f", f"examples/services/{file}", *flags)
    assert done.code == 0, done.err
    compare(f"{name}.yaml", done.out)
    assert_valid(yaml.load_all(done.out, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


@pytest.mark.parametrize("name", CASES)
def test_an_example_is_explained_by_its_golden_file(name: str, call: Call) -> None:
    file, *flags = CASES[name]
    done = call("explain", "-f", f"examples/services/{file}", "--target", "cluster", *flags)
    assert done.code == 0, done.err
    compare(f"{name}.explain.txt", done.out)


@pytest.mark.parametrize("name", CASES)
def test_lint_is_silent_about_what_we_render(name: str, call: Call) -> None:
    assert call("lint", "-f", str(GOLDEN / f"{name}.yaml")).out == ""


GUIDE = Path(__file__).resolve().parents[1] / "platform/spec/documents/ome-guide"
WHOLE = [path for path in sorted(GUIDE.glob("*.yaml")) if "engine:" in path.read_text() or "model:" in path.read_text()]


@pytest.mark.parametrize("path", [*sorted(EXAMPLES.glob("*.yaml")), *WHOLE], ids=lambda path: path.stem)
def test_lint_is_silent_about_a_service_whose_document_is_sound(path: Path, call: Call) -> None:
    """The model's size is known there, which the manifests alone do not tell."""
    done = call("lint", "-f", str(path))
    assert (done.code, done.out) == (0, "")


CORE_GROUPS = ("apps", "autoscaling", "policy", "networking.k8s.io", "")


@pytest.mark.parametrize("name", CASES)
def test_every_kind_that_a_cluster_does_not_have_by_itself_is_among_the_needs(name: str, call: Call) -> None:
    file, *flags = CASES[name]
    done = call("explain", "-f", f"examples/services/{file}", "--target", "cluster", *flags, "-o", "json")
    needs = {
        need["name"]
        for service in json.loads(done.out)["services"]
        for need in service["needs"]
        if need["kind"] == "crd"
    }
    made = {(document["apiVersion"].rpartition("/")[0], document["kind"]) for document in golden(name)}
    assert {f"{kind.lower()}s.{group}" for group, kind in made if group not in CORE_GROUPS} == needs


@pytest.mark.parametrize("name", CASES)
def test_what_an_autoscaler_scales_is_there(name: str) -> None:
    made = {(document["kind"], document["metadata"]["name"]) for document in golden(name)}
    scaled = [document.get("spec", {}).get("scaleTargetRef") for document in golden(name)]
    assert {(target["kind"], target["name"]) for target in scaled if target} <= made


def golden(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))


def test_every_golden_file_has_its_example() -> None:
    assert {path.name.partition(".")[0] for path in GOLDEN.iterdir()} == set(CASES)


def test_the_examples_of_services_are_valid_together(call: Call) -> None:
    done = call("validate", "-f", "examples/services", "--target", "cluster")
    assert done.code == 0, done.err
    assert done.out.count(": valid, ") == len(list(EXAMPLES.glob("*.yaml")))
