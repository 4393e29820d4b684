"""The built-in catalogue: correct by the same rules as users' documents, and enough for what people write."""

import subprocess
import sys

import pytest
from tests.doc_pages import page_section
from tests.platform.catalogue.catalogue_cases import kserve, ome

from pilotlight.catalogue.catalogue import builtin, catalogue_from, data_files
from pilotlight.catalogue.runtime_documents import expand
from pilotlight.catalogue.runtime_merge import merge_component
from pilotlight.catalogue.runtime_score import RuntimeHost
from pilotlight.catalogue.runtime_selection import Selection, select_runtime
from pilotlight.plan.component_runtime import runtime_host
from pilotlight.plan.types import Capabilities
from pilotlight.spec.problems import Problems
from pilotlight.spec.service import Component, ModelSpec, NodeGroup, Role, Service
from pilotlight.spec.yaml_nodes import parse

IMAGES = [
    c["image"] for r in builtin().runtimes for c in [*r.pod.get("containers", []), *r.workers.get("containers", [])]
]
IMAGES += [
    part["runner"]["image"] for r in builtin().runtimes for part in (r.engine, r.decoder, r.router) if "runner" in part
]


def test_its_data_passes_the_checks_that_are_made_of_users_documents() -> None:
    problems = Problems()
    nodes = [node for file in data_files() for node in parse(file.read_text(), file.name, problems)]
    checked = catalogue_from(nodes, problems)
    assert problems.items == []
    assert checked.shadowed == ()
    assert {runtime.name: runtime.pod for runtime in checked.runtimes} == {r.name: r.pod for r in builtin().runtimes}
    assert {model.name: model.size_bytes for model in checked.models} == {
        m.name: m.size_bytes for m in builtin().models
    }


def test_every_image_is_pinned() -> None:
    tags = [image.rpartition(":")[2] for image in IMAGES]
    assert all(any(letter.isdigit() for letter in tag) for tag in tags), IMAGES


def test_it_is_read_once_and_only_when_asked_for() -> None:
    script = (
        "from pathlib import Path; opened = []; real = Path.read_text\n"
        "Path.read_text = lambda self, *a: (opened.append(self.name), real(self, *a))[1]\n"
        "from pilotlight.catalogue import catalogue, runtime_selection\n"
        "assert 'kserve.yaml' not in opened, opened\n"
        "catalogue.builtin(); catalogue.builtin()\n"
        "assert opened.count('kserve.yaml') == 1, opened\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


TRUSTED = {"env": [{"name": "INFERENCE_TRUST_PICKLE", "value": f"model.pkl={'0' * 64}"}]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (ModelSpec("sklearn"), "kserve-sklearnserver"),
        (ModelSpec("sklearn", protocol="v2"), "kserve-mlserver"),
        (ModelSpec("sklearn", storage_uri="s3://b/model.skops"), "pilotlight"),
        (ModelSpec("scikit-learn"), "kserve-sklearnserver"),
        (ModelSpec("sklearn", container=TRUSTED), "pilotlight"),
        (ModelSpec("mlflow", container=TRUSTED), "pilotlight"),
        (ModelSpec("xgboost"), "pilotlight"),
        (ModelSpec("lightgbm", "4", protocol="v2"), "pilotlight"),
        (ModelSpec("lightgbm", runtime="kserve-lgbserver"), "kserve-lgbserver"),
        (ModelSpec("pytorch", storage_uri="gs://b/net.pt"), "pilotlight"),
        (ModelSpec("transformers"), "kserve-huggingfaceserver"),
        (ModelSpec("text", runtime="pilotlight"), "pilotlight"),
        (ModelSpec("", storage_uri="gs://b/net.mar"), "kserve-torchserve"),
        (ModelSpec("tensorflow"), "kserve-tensorflow-serving"),
        (ModelSpec("openvino"), "kserve-openvino"),
        (ModelSpec("pytorch"), "kserve-torchserve"),
        (ModelSpec("pmml"), "kserve-pmmlserver"),
        (ModelSpec("paddle"), "kserve-paddleserver"),
        (ModelSpec("mlflow", protocol="v2"), "kserve-mlserver"),
        (ModelSpec("huggingface"), "kserve-huggingfaceserver"),
        (ModelSpec("vLLM"), "kserve-vllmserver"),
        (ModelSpec("tensorrt", protocol="v2"), "kserve-tritonserver"),
        (ModelSpec("onnx"), "pilotlight"),
        (ModelSpec("onnx", "1", protocol="grpc-v2"), "pilotlight"),
        (ModelSpec("triton", protocol="v2"), "pilotlight"),
        (ModelSpec("triton", protocol="v2", runtime="kserve-tritonserver"), "kserve-tritonserver"),
        (ModelSpec("", storage_uri="s3://b/net.pt2"), "pilotlight"),
        (ModelSpec("", storage_uri="gs://b/model.joblib"), "kserve-sklearnserver"),
    ],
)
def test_what_kserves_users_write_finds_its_runtime(spec: ModelSpec, expected: str) -> None:
    selection = _selected(kserve(spec), "predictor")
    assert (selection.runtime.name if selection.runtime else selection.problems) == expected


@pytest.mark.parametrize("target", ["local", "slurm", "lepton", "brev"])
@pytest.mark.parametrize(
    "name", ["onnx", "pytorch", "torch", "huggingface", "transformers", "text", "sklearn", "xgboost", "mlflow", "tf"]
)
def test_common_names_find_our_predictor_where_no_other_image_runs(name: str, target: str) -> None:
    service = kserve(ModelSpec(name, storage_uri="s3://b/it"))
    host = runtime_host(Capabilities(target=target), service)
    selection = select_runtime(service, service.components["predictor"], builtin(), host)
    assert (selection.runtime.name if selection.runtime else selection.problems) == "pilotlight"


def test_a_runtime_that_the_target_cannot_run_is_passed_over_with_the_reason() -> None:
    service = kserve(ModelSpec("paddle"))
    host = RuntimeHost("local", images=False)
    selection = select_runtime(service, service.components["predictor"], builtin(), host)
    reasons = {candidate.runtime.name: candidate.reason for candidate in selection.candidates}
    assert reasons["kserve-paddleserver"] == "local runs only the Pilotlight predictor image"
    (problem,) = selection.problems
    assert problem.code == "PL224"
    assert problem.message == (
        "kserve-paddleserver serves format paddle, but local runs only the Pilotlight predictor image; "
        "use --target kubernetes or docker, or see explain --runtime"
    )


def test_a_model_that_may_be_a_pickle_is_left_to_kserves_runtimes_with_the_reason() -> None:
    selection = _selected(kserve(ModelSpec("sklearn", storage_uri="s3://b/model.joblib")), "predictor")
    reasons = {candidate.runtime.name: candidate.reason for candidate in selection.candidates}
    assert reasons["pilotlight"] == (
        "the model may be a pickle, which it loads only by its SHA-256: set INFERENCE_TRUST_PICKLE in env, or name it"
    )


def test_a_mistyped_format_gets_the_nearest_one() -> None:
    (problem,) = _selected(kserve(ModelSpec("sklern")), "predictor").problems
    assert problem.message == "no runtime serves format sklern; did you mean sklearn? Else see explain --runtime"


ENGINE: dict[Role, Component] = {"engine": Component("engine")}


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        (ome("llama-3-70b-instruct", "vllm-text-generation"), "vllm-text-generation"),
        (ome("llama-3-70b-instruct"), "vllm-text-generation"),
        (
            ome("deepseek-r1", components={"engine": Component("engine", worker=NodeGroup(size=1))}),
            "sglang-text-generation-multi-node",
        ),
        (
            ome("deepseek-r1", components=ENGINE | {"decoder": Component("decoder")}),
            "sglang-text-generation-disaggregated",
        ),
        (ome("bge-m3"), "vllm-text-embedding"),
        (ome("llama-3-70b-instruct", accelerator={"acceleratorClass": "nvidia-h100-80gb"}), "vllm-text-generation"),
    ],
)
def test_what_omes_users_write_finds_its_runtime(service: Service, expected: str) -> None:
    selection = _selected(service, "engine")
    assert selection.problems == ()
    assert selection.runtime is not None
    assert selection.runtime.name == expected


def test_every_model_of_it_finds_a_runtime() -> None:
    for model in builtin().models:
        assert _selected(ome(model.name), "engine").runtime is not None, model.name
        assert model.size_bytes > 10**8, model.name


def test_every_runtime_of_it_merges_and_expands() -> None:
    for runtime in builtin().runtimes:
        service = ome() if runtime.group == "ome" else kserve()
        component = next(iter(service.components.values()))
        problems = Problems()
        container = expand(merge_component(runtime, component).container, service, runtime, problems)
        assert "{{" not in str(container), runtime.name
        assert container or runtime.engine.get("leader"), runtime.name
        assert problems.items == [], runtime.name


def _selected(service: Service, role: Role) -> Selection:
    return select_runtime(service, service.components[role], builtin())


def test_the_page_names_every_runtime_of_it() -> None:
    page = page_section("docs/reference/formats.md", "The catalogue: runtimes, models, accelerators")
    assert [runtime.name for runtime in builtin().runtimes if f"`{runtime.name}`" not in page] == []
