"""The image of a service: the variant of ours that loads its model, from the registry of the target."""

import io
from dataclasses import replace

import pytest

from pilotlight.catalogue.catalogue import builtin
from pilotlight.contract import LOCAL_CAPABILITIES
from pilotlight.k8s import names
from pilotlight.plan.support.image_variants import table, variants_for
from pilotlight.plan.types import Capabilities, Plan
from pilotlight.release.plan_and_render import Sources, plan_all
from pilotlight.spec.problems import InvalidDocument
from pilotlight.wire.model_formats import find_format

DOCUMENT = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: it
  annotations: {{serving.kserve.io/deploymentMode: Standard{annotations}}}
spec:
  predictor:
    model:
      modelFormat: {{name: {name}}}
      runtime: pilotlight
      storageUri: s3://models/it
      {container}
"""
PLAIN = "pilotlight/predictor:0.1.0"
GPU = "resources: {limits: {nvidia.com/gpu: 1}}"
VARIANT = ", pilotlight.dev/image-variant: {}"
UNSERVED = ("tensorflow", "tensorrt", "catboost", "pmml")  # formats whose libraries no variant has


def planned(name: str, *, variant: str = "", container: str = "", **capabilities: str) -> Plan:
    annotations = VARIANT.format(variant) if variant else ""
    text = DOCUMENT.format(name=name, annotations=annotations, container=container)
    offered = replace(Capabilities(), **capabilities)  # type: ignore[arg-type]
    return plan_all(Sources(("-",), stdin=io.StringIO(text)), offered).plans[0]


def image(plan: Plan) -> str:
    return str(plan.workloads[0].template["spec"]["containers"][0]["image"])


def problem(name: str, **options: str) -> str:
    with pytest.raises(InvalidDocument) as raised:
        planned(name, **options)
    (one,) = raised.value.problems
    return str(one)


def served() -> list[str]:
    """The formats that the built-in runtime of ours takes."""
    return sorted({row.name for each in builtin().runtimes if each.name == "pilotlight" for row in each.formats})


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("onnx", ""), ("python", ""), ("triton", ""), ("torchscript", "-torch"), ("torch-export", "-torch"),
        ("pytorch", "-torch"), ("safetensors", "-text"), ("huggingface", "-text"), ("transformers", "-text"),
        ("sklearn", "-sklearn"), ("xgboost", "-sklearn"), ("lightgbm", "-sklearn"), ("mlflow", "-sklearn"),
    ],
)  # fmt: skip
def test_a_format_gets_the_variant_that_loads_it(name: str, suffix: str) -> None:
    assert image(planned(name)) == f"{PLAIN}{suffix}"


@pytest.mark.parametrize(("name", "suffix"), [("onnx", "-cuda"), ("python", "-cuda"), ("torchscript", "-torch")])
def test_with_a_gpu_onnxruntime_is_the_one_for_cuda_and_torch_stays(name: str, suffix: str) -> None:
    assert image(planned(name, container=GPU)) == f"{PLAIN}{suffix}"


def test_explain_says_which_variant_and_why() -> None:
    (decision,) = [each for each in planned("torchscript").decisions if each.topic == "predictor: image"]
    assert (decision.value, decision.reason) == (
        f"{PLAIN}-torch", "variant torch loads torchscript; it has torch, safetensors, mlflow-skinny",
    )  # fmt: skip


def test_every_variant_comes_from_the_registry() -> None:
    registry = "registry.example.com:5000/team"
    assert image(planned("torchscript", image_registry=registry)) == f"{registry}/{PLAIN}-torch"
    assert image(planned("onnx", image_registry=registry)) == f"{registry}/{PLAIN}"


def test_an_image_of_the_document_or_of_the_capabilities_stays() -> None:
    own = "registry.example.com/pilotlight/predictor:0.1.0-tensorflow"
    assert image(planned("tensorflow", container=f"image: {own}", image_registry="other.example.com")) == own
    assert image(planned("torchscript", image="example.com/all:1")) == "example.com/all:1"
    assert image(planned("tensorflow", **LOCAL_CAPABILITIES)) == LOCAL_CAPABILITIES["image"]


def test_an_annotation_names_the_variant() -> None:
    assert image(planned("python", variant="sklearn")) == f"{PLAIN}-sklearn"
    assert image(planned("onnx", variant="cpu", container=GPU)) == PLAIN


def test_a_variant_that_does_not_exist_is_an_error_at_its_place() -> None:
    assert problem("python", variant="jax") == (
        '<stdin>:5:91: error PL117: metadata.annotations["pilotlight.dev/image-variant"]: = jax, must be "cpu" or '
        '"cuda" or "sklearn" or "torch" or "text"'
    )


def test_a_variant_that_cannot_load_the_model_is_an_error_that_names_those_that_can() -> None:
    text = problem("torchscript", variant="sklearn")
    assert text.startswith("<stdin>:5:91: error PL390: ")
    assert text.endswith("= sklearn, which cannot load torchscript; use one of torch, text")


def test_a_format_that_no_variant_loads_is_refused_with_the_field_for_an_image_of_ones_own() -> None:
    assert problem("tensorflow") == (
        "<stdin>:9:7: error PL390: spec.predictor.model.modelFormat: = tensorflow, which no variant of the predictor "
        "image can load; set spec.predictor.model.image to your own image"
    )


def test_every_format_of_our_runtime_is_loaded_by_a_variant_or_refused() -> None:
    assert {name for name in served() if not variants_for(name)} <= {*UNSERVED}
    assert not [name for name in UNSERVED if variants_for(name)]


def test_the_table_has_names_that_the_annotation_takes_and_formats_that_are_known() -> None:
    assert tuple(variant.name for variant in table()) == names.IMAGE_VARIANTS
    formats = {name for variant in table() for name in variant.formats}
    assert {name: found.name for name in formats if (found := find_format(name))} == {name: name for name in formats}
