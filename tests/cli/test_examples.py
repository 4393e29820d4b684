"""Every example service, in every mode that fits it, becomes what people have read. UPDATE_GOLDEN=1 writes it anew."""

import os
from pathlib import Path

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
    done = call("explain", "-f", f"examples/services/{file}", *flags)
    assert done.code == 0, done.err
    compare(f"{name}.explain.txt", done.out)


@pytest.mark.parametrize("name", CASES)
def test_lint_finds_no_error_in_what_we_render(name: str, call: Call) -> None:
    done = call("lint", "-f", str(GOLDEN / f"{name}.yaml"))
    assert done.code == 0, done.out


def test_every_golden_file_has_its_example() -> None:
    assert {path.name.partition(".")[0] for path in GOLDEN.iterdir()} == set(CASES)


def test_the_examples_of_services_are_valid_together(call: Call) -> None:
    done = call("validate", "-f", "examples/services")
    assert done.code == 0, done.err
    assert done.out.count(": valid, ") == len(list(EXAMPLES.glob("*.yaml")))
