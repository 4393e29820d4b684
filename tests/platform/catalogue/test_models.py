"""Which model a service serves, what is derived about it, and why."""

import pytest
from tests.platform.catalogue.catalogue_cases import catalogue, kserve, line, model, ome, runtime

from pilotlight.catalogue.document_types import byte_count, parameter_count, weights_size
from pilotlight.catalogue.model_documents import ANNOTATION_SIZE, guess_format, resolve_model
from pilotlight.catalogue.runtime_selection import select_runtime
from pilotlight.spec.problems import Problems
from pilotlight.spec.service import BaseModel, Catalogue, ModelSpec, Reference, Service


def resolved(service: Service, *models: BaseModel) -> tuple[BaseModel | None, list[str]]:
    problems = Problems()
    found = resolve_model(service, Catalogue(models=models), problems)
    return found, [str(problem) for problem in problems.items]


def test_a_reference_finds_the_clusters_model_or_the_namespaces_after_its_kind() -> None:
    cluster, own = model(), model(kind="BaseModel", namespace="team")
    assert resolved(ome(), own, cluster)[0] == cluster
    service = Service("ome", "s", "team", {}, model=Reference("m", "BaseModel", "ome.io"))
    assert resolved(service, cluster, own)[0] == own


def test_an_unknown_model_is_told_with_a_suggestion() -> None:
    found, told = resolved(ome("llama-3-70b-instuct"), model("llama-3-70b-instruct"))
    assert found is None
    assert told == [
        "s.yaml:6:11: error PL210: spec.model.name: no model is called llama-3-70b-instuct; "
        "did you mean llama-3-70b-instruct? Else add its ClusterBaseModel document to the files"
    ]


def test_a_disabled_model_is_refused() -> None:
    assert "PL211: spec.model.name: model m is disabled" in resolved(ome(), model(disabled=True))[1][0]


def test_kserve_describes_its_model_in_place() -> None:
    found, told = resolved(kserve(ModelSpec("sklearn", "1", storage_uri="gs://bucket/iris")))
    assert found is not None
    assert (found.name, found.format, found.format_version, found.storage_uri) == (
        "iris",
        "sklearn",
        "1",
        "gs://bucket/iris",
    )
    assert told == []


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://b/model.onnx", "onnx"),
        ("https://host/a/model.ONNX?versionId=3", "onnx"),
        ("pvc://models/net.pt2", "torch-export"),
        ("gs://b/model.joblib", "sklearn"),
        ("hf://meta-llama/Llama-3.1-8B", "huggingface"),
        ("/models/model.py", "python"),
        ("s3://b/iris", ""),
    ],
)
def test_a_missing_format_is_told_from_the_address(uri: str, expected: str) -> None:
    found, told = resolved(kserve(ModelSpec("", storage_uri=uri)))
    assert (found.format if found else "") == expected
    assert bool(told) is not bool(expected)
    if found:
        assert f"format {expected} because the address" in found.reasons[0]


def test_the_same_address_means_weights_to_ome_and_a_server_to_kserve() -> None:
    assert (guess_format("hf://a/b", "ome")[0], guess_format("hf://a/b", "kserve")[0]) == ("safetensors", "huggingface")


@pytest.mark.parametrize(
    ("size", "quantization", "dtype", "expected"),
    [
        ("70B", "", "", 140_000_000_000),
        ("70B", "int4", "", 35_000_000_000),
        ("8B", "fp8", "bfloat16", 8_000_000_000),
        ("1B", "", "float32", 4_000_000_000),
        ("560M", "", "", 1_120_000_000),
        ("", "fp8", "", 0),
    ],
)
def test_the_weights_take_what_their_precision_takes(size: str, quantization: str, dtype: str, expected: int) -> None:
    assert weights_size(size, quantization, dtype)[0] == expected


@pytest.mark.parametrize(
    ("text", "count"), [("7B", 7e9), ("1.5T", 1.5e12), ("560m", 5.6e8), ("12", 12), ("7 bn", None)]
)
def test_parameter_counts_are_read_with_their_letter(text: str, count: float | None) -> None:
    assert parameter_count(text) == count


@pytest.mark.parametrize(
    ("text", "size"),
    [("16Gi", 2**34), ("500M", 5 * 10**8), ("1.5e9", 15 * 10**8), ("7", 7), ("8GB", None), ("", None)],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: str, size: int | None) -> None:
    assert byte_count(text) == size


def test_a_declared_size_wins_and_a_wrong_one_is_told() -> None:
    found, _ = resolved(ome(annotations={ANNOTATION_SIZE: "16Gi"}), model(size_bytes=1))
    assert found is not None
    assert found.size_bytes == 2**34
    _, told = resolved(ome(annotations={ANNOTATION_SIZE: "big"}), model())
    assert "PL213: metadata.annotations" in told[0]


def test_what_a_model_leaves_unsaid_only_warns_where_its_runtime_is_named() -> None:
    asks = runtime("r", line(architecture="LlamaForCausalLM"))
    service = ome(runtime_name="r")
    selection = select_runtime(service, service.components["engine"], catalogue(asks))
    assert selection.runtime == asks
    assert [problem.severity for problem in selection.problems] == ["warning"]
    automatic = ome()
    assert select_runtime(automatic, automatic.components["engine"], catalogue(asks)).runtime is None


def test_a_guess_never_contradicts_a_runtime_that_is_named() -> None:
    diffusers = runtime("r", line("diffusers", framework="diffusers"))
    guessed = model(framework="transformers", guessed=True)
    service = ome(runtime_name="r")
    selection = select_runtime(service, service.components["engine"], catalogue(diffusers, models=(guessed,)))
    (problem,) = selection.problems
    assert (problem.code, problem.severity) == ("PL229", "warning")
    assert problem.message.endswith("does not set modelFormat.name, modelFramework.name")
