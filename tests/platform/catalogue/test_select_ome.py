"""OME's choice of a runtime: what must agree, what scores, how ties are broken."""

from typing import Any

import pytest
from tests.platform.catalogue.catalogue_cases import catalogue, line, model, ome, runtime

from pilotlight.catalogue.runtime_score import version_fits
from pilotlight.catalogue.runtime_selection import Selection, select_runtime
from pilotlight.spec.service import BaseModel, Component, NodeGroup, Runtime, Service

LLAMA: dict[str, Any] = {"framework": "transformers", "framework_version": "4.43.0", "architecture": "LlamaForCausalLM"}


def chosen(served: BaseModel, *runtimes: Runtime, service: Service | None = None) -> Selection:
    asked = service or ome()
    return select_runtime(asked, asked.components["engine"], catalogue(*runtimes, models=(served,)))


def name(selection: Selection) -> str:
    return selection.runtime.name if selection.runtime else ""


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ""),
        (
            {"architecture": "MistralForCausalLM"},
            "architecture LlamaForCausalLM, the runtime supports MistralForCausalLM",
        ),
        ({"architecture": ""}, "architecture LlamaForCausalLM, the runtime lists none"),
        ({"quantization": "fp8"}, "has no quantization, the runtime requires fp8"),
        ({"framework": ""}, "framework transformers, the runtime lists none"),
        ({"framework": "onnx"}, "framework transformers, the runtime supports onnx"),
        ({"framework_version": "4.40.0"}, "framework version 4.43.0, the runtime supports Equal 4.40.0"),
        ({"framework_version": "4.50.0", "framework_operator": "GreaterThanOrEqual"}, ""),
        ({"version": "1.0.0"}, "has no format version"),
        ({"architecture": "*", "framework": "*", "quantization": "*", "version": "*"}, ""),
    ],
)
def test_every_property_must_agree(fields: dict[str, Any], reason: str) -> None:
    selection = chosen(model(**LLAMA), runtime("r", line(**{**LLAMA, **fields})))
    assert (selection.runtime is not None) == (not reason)
    assert reason in selection.candidates[0].reason


@pytest.mark.parametrize(
    ("offered", "wanted", "operator", "fits"),
    [
        ("1.0.0", "1.0.0", "Equal", True),
        ("1.0.0", "1.0", "Equal", True),
        ("1.0.1", "1.0.0", "GreaterThan", True),
        ("1.0.0", "1.0.0", "GreaterThan", False),
        ("4.33.1", "4.46.3", "GreaterThanOrEqual", False),
        ("4.46", "4.33.1", "GreaterThanOrEqual", False),
        ("v2", "1", "GreaterThan", False),
        ("v2", "v1", "GreaterThan", True),
        ("4.50.0", "4.43.0.dev0", "GreaterThanOrEqual", False),
        ("4.43.0.dev0", "4.43.0.dev0", "GreaterThan", True),
        ("new", "1", "Equal", False),
    ],
)
def test_versions_compare_as_ome_compares_them(offered: str, wanted: str, operator: str, fits: bool) -> None:
    assert version_fits(offered, wanted, operator) is fits


@pytest.mark.parametrize(
    ("size", "found"), [("7B", "small"), ("70B", "large"), ("500B", ""), ("", "large"), ("900M", "small")]
)
def test_a_model_must_lie_within_the_size_range(size: str, found: str) -> None:
    small = runtime("small", line(priority=1), size_range=("500M", "13B"))
    large = runtime("large", line(priority=2), size_range=("60B", "80B"))
    assert name(chosen(model(parameter_size=size), small, large)) == found


@pytest.mark.parametrize(
    ("fields", "score"),
    [
        ({}, 15),
        ({"priority": 3}, 45),
        ({"format_weight": 4, "framework_weight": 2, "priority": 2}, 12),
        ({"framework": "", "framework_version": ""}, 10),
    ],
)
def test_the_score_is_weight_times_priority(fields: dict[str, Any], score: int) -> None:
    framework = {"framework": "transformers"} | fields
    served = model(framework=framework["framework"])
    assert chosen(served, runtime("r", line(**framework))).candidates[0].score == score


def test_the_higher_score_wins() -> None:
    assert name(chosen(model(), runtime("a", line()), runtime("b", line(priority=2)))) == "b"


def test_of_equals_the_narrowest_size_range_wins() -> None:
    wide, narrow = runtime("a", size_range=("1B", "100B")), runtime("b", size_range=("6B", "8B"))
    assert name(chosen(model(parameter_size="7B"), wide, narrow)) == "b"


def test_of_equals_the_first_name_wins() -> None:
    assert name(chosen(model(), runtime("b"), runtime("a"))) == "a"


def test_a_runtime_of_the_namespace_goes_before_the_clusters_whatever_its_score() -> None:
    own = runtime("own", line(), namespace="team")
    assert name(chosen(model(), runtime("best", line(priority=9)), own)) == "own"


def test_a_runtime_of_another_namespace_is_out_of_reach() -> None:
    selection = chosen(model(), runtime("theirs", namespace="other"))
    assert (selection.runtime, selection.candidates) == (None, ())


def test_only_lines_with_auto_select_are_chosen_unasked() -> None:
    manual = runtime("manual", line(auto_select=False, priority=9))
    selection = chosen(model(), manual, runtime("auto"))
    assert name(selection) == "auto"
    assert selection.candidates[1].reason == "autoSelect is off; it must be set explicitly"
    assert name(chosen(model(), manual, service=ome(runtime_name="manual"))) == "manual"


def test_a_disabled_runtime_is_passed_over() -> None:
    selection = chosen(model(), runtime("off", line(priority=9), disabled=True), runtime("on"))
    assert [(c.runtime.name, c.reason) for c in selection.candidates if not c.accepted] == [("off", "it is disabled")]


def test_the_line_that_fits_is_given_with_the_runtime() -> None:
    fitting = line(quantization="fp8")
    selection = chosen(model(quantization="fp8"), runtime("r", line(quantization="int4"), fitting, line()))
    assert selection.format == fitting


def test_a_runtime_must_support_the_accelerator_class_that_is_asked_for() -> None:
    service = ome(accelerator={"acceleratorClass": "nvidia-h100-80gb"})
    some = runtime("some", accelerators={"acceleratorClasses": ["nvidia-a100-40gb"]})
    assert "requires accelerator class nvidia-h100-80gb" in chosen(model(), some, service=service).candidates[0].reason
    any_class = runtime("any", accelerators={"acceleratorClasses": ["*"]})
    assert name(chosen(model(), some, runtime("none"), any_class, service=service)) == "any"


def test_a_component_may_ask_for_a_class_of_its_own() -> None:
    service = ome(components={"engine": Component("engine", accelerator={"acceleratorClass": "t4"})})
    fast = runtime("a", accelerators={"acceleratorClasses": ["h100"]})
    both = runtime("b", accelerators={"acceleratorClasses": ["h100", "t4"]})
    assert name(chosen(model(), fast, both, service=service)) == "b"


def test_a_diffusion_pipeline_needs_every_part_that_the_runtime_names() -> None:
    pipeline = {"className": "QwenImagePipeline", "vae": {"library": "diffusers", "type": "AutoencoderKL"}}
    asks = runtime("r", line(pipeline={"className": "QwenImagePipeline", "vae": {"library": "diffusers"}}))
    assert name(chosen(model(pipeline=pipeline), asks)) == "r"
    assert "pipeline is Other" in chosen(model(pipeline={"className": "Other"}), asks).candidates[0].reason
    assert "has no diffusion pipeline" in chosen(model(), asks).candidates[0].reason


def test_a_service_with_a_decoder_needs_a_runtime_that_has_one() -> None:
    plain, apart = runtime("plain", line(priority=9)), runtime("apart", decoder={"runner": {"image": "d"}})
    pair = {"engine": Component("engine"), "decoder": Component("decoder")}
    assert name(chosen(model(), plain, apart, service=ome(components=pair))) == "apart"
    assert name(chosen(model(), runtime("plain"), apart)) == "plain"


def test_a_service_with_workers_needs_a_runtime_for_several_nodes() -> None:
    single, several = runtime("single", line(priority=9)), runtime("several", engine={"leader": {}, "worker": {}})
    service = ome(components={"engine": Component("engine", worker=NodeGroup(size=1))})
    assert name(chosen(model(), single, several, service=service)) == "several"
    assert name(chosen(model(), single, several)) == "single"


def test_an_engine_that_takes_its_rank_by_flags_serves_several_nodes() -> None:
    service = ome(components={"engine": Component("engine", worker=NodeGroup(size=1))})
    flags = runtime("flags", line(priority=9), engine={"runner": {"image": "lmsysorg/sglang:1"}})
    assert name(chosen(model(), flags, runtime("single"), service=service)) == "flags"
    several = runtime("several", engine={"leader": {}, "worker": {}})
    assert name(chosen(model(), flags, several, service=service)) == "several"


def test_a_model_that_is_served_but_not_so_is_told_apart_from_one_that_is_not() -> None:
    pair = {"engine": Component("engine"), "decoder": Component("decoder")}
    (problem,) = chosen(model(), runtime("r"), service=ome(components=pair)).problems
    assert problem.message.startswith("r serves format safetensors")
    assert "but the service has a decoder, the runtime has no decoderConfig" in problem.message


def test_nothing_fitting_is_one_problem_that_says_what_was_sought() -> None:
    selection = chosen(model(parameter_size="7B", **LLAMA), runtime("r", line("onnx")))
    (problem,) = selection.problems
    assert str(problem).startswith("s.yaml:6:11: error PL224: spec.model.name: no runtime serves format safetensors")
    assert "architecture LlamaForCausalLM" in problem.message


def test_a_component_with_its_own_image_needs_no_runtime() -> None:
    service = ome(components={"engine": Component("engine", runner={"image": "mine"})})
    selection = chosen(model(), runtime("r", line("onnx")), service=service)
    assert (selection.runtime, selection.problems) == (None, ())
    bare = ome("", components={"engine": Component("engine")})
    assert [problem.code for problem in chosen(model(), service=bare).problems] == ["PL228"]
