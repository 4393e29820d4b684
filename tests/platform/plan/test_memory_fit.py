"""GPUs by memory: a model that does not fit is found before it is applied, and a count that fits is chosen."""

from dataclasses import replace
from typing import Any

import pytest
from tests.platform.plan.building import codes, container, env, reason

from pilotlight.catalogue.catalogue import builtin
from pilotlight.catalogue.model_memory import GIB
from pilotlight.k8s.names import ANNOTATION_MEMORY_CHECK
from pilotlight.plan import plan
from pilotlight.plan.types import Capabilities, Plan
from pilotlight.spec.problems import InvalidDocument, Problem, SourceLocation
from pilotlight.spec.service import Component, NodeGroup, Reference, Service

PLACE = SourceLocation("llama.yaml", 9, 7)
RESOURCES = "spec.engine.runner.resources"


def llm(model: str, gpus: int = 0, cls: str = "", annotations: Any = None, args: Any = None, **engine: Any) -> Service:
    """An OME service of the built-in catalogue; `gpus`: written in the document."""
    runner = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    runner |= {"args": args} if args else {}
    return Service(
        "ome", "llama", "demo", {"engine": Component("engine", runner=runner or None, **engine)},
        model=Reference(model, "ClusterBaseModel", "ome.io"), annotations=annotations or {},
        accelerator={"acceleratorClass": cls} if cls else None, locations={RESOURCES: PLACE} if gpus else {},
    )  # fmt: skip


def planned(service: Service, **capabilities: Any) -> Plan:
    return plan(service, builtin(), Capabilities(**capabilities))


def problem_of(service: Service, **capabilities: Any) -> Problem:
    """The one problem about memory, of a plan or of its refusal."""
    try:
        problems = planned(service, **capabilities).warnings
    except InvalidDocument as error:
        problems = tuple(error.problems)
    (found,) = [each for each in problems if each.code in ("PL379", "PL380")]
    return found


def test_memory_is_judged_in_the_same_run_as_a_decoder_without_a_router() -> None:
    service = llm("llama-3-1-70b-instruct", 1, "nvidia-a100-80gb")
    disaggregated = replace(service, components={**service.components, "decoder": Component("decoder")})
    with pytest.raises(InvalidDocument) as refused:
        planned(disaggregated)
    assert {"PL377", "PL379"} <= set(codes(refused.value.problems))


def gpus_of(service: Service, **capabilities: Any) -> int:
    return int(container(planned(service, **capabilities).workloads[0])["resources"]["limits"]["nvidia.com/gpu"])


def test_70b_in_bf16_on_one_gpu_of_80_gb_is_an_error_where_the_count_is_written() -> None:
    found = problem_of(llm("llama-3-1-70b-instruct", 1, "nvidia-a100-80gb"))
    assert (found.code, found.path, found.location) == ("PL379", RESOURCES, PLACE)
    assert found.message == (
        "132 GiB of weights do not fit into 1 × 80 GiB × 0.9; give each pod 4 GPUs, serve it quantised, "
        'or override with pilotlight.dev/memory-check: "off"'
    )


@pytest.mark.parametrize(
    ("service", "code"),
    [
        (llm("llama-3-1-70b-instruct", 2, "nvidia-a100-80gb"), "PL380"),
        (llm("llama-3-70b-instruct", 1), "PL380"),
        (llm("deepseek-r1", 2), "PL379"),
        (llm("llama-3-1-70b-instruct", 4, "nvidia-a100-80gb", args=["--tensor-parallel-size=1"]), "PL379"),
        (llm("llama-3-1-70b-instruct", 1, "nvidia-a100-80gb", args=["--tensor-parallel-size=4"]), "PL379"),
    ],
    ids=["weights fit, their cache does not", "a GPU of unknown memory may hold it", "no GPU holds it", "one is used",
         "one is there"],
)  # fmt: skip
def test_the_verdict_depends_on_what_is_known(service: Service, code: str) -> None:
    assert problem_of(service).code == code


@pytest.mark.parametrize(
    "service",
    [
        llm("llama-3-1-70b-instruct", 4, "nvidia-a100-80gb"),
        llm("llama-3-1-70b-instruct", 1, "nvidia-a100-80gb", args=["--quantization=awq", "--max-model-len=8192"]),
        llm("llama-3-1-70b-instruct", 1, "nvidia-a100-80gb", {ANNOTATION_MEMORY_CHECK: "off"}),
        llm("deepseek-r1", worker=NodeGroup(size=1)),
    ],
    ids=["four", "quantised", "overridden", "two nodes"],
)
def test_what_fits_or_is_overridden_is_planned_without_a_word(service: Service) -> None:
    assert not {"PL379", "PL380"} & set(codes(planned(service).warnings))


def test_a_count_that_fits_is_chosen_where_the_document_gives_none() -> None:
    assert gpus_of(llm("llama-3-1-8b-instruct")) == 1
    assert gpus_of(llm("llama-3-70b-instruct")) == 4
    assert gpus_of(llm("llama-3-70b-instruct", cls="nvidia-h200-141gb")) == 2
    assert gpus_of(llm("llama-3-1-8b-instruct"), gpu_memory=24 * GIB) == 2, "16 GB of weights and 17 GB of cache"
    on_l4 = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4", "zone": "a"}}
    assert gpus_of(llm("llama-3-1-8b-instruct", pod=on_l4)) == 2
    assert gpus_of(llm("llama-3-1-8b-instruct", args=["--tensor-parallel-size=2"])) == 2, "as many as the engine uses"
    made = planned(llm("llama-3-70b-instruct")).workloads[0]
    assert env(made)["PARALLELISM_SIZE"] == "4"


def test_explain_shows_the_sum() -> None:
    value, why = reason(planned(llm("llama-3-70b-instruct", cls="nvidia-a100-80gb")), "engine: GPU memory")
    assert value == "149 GiB of 288 GiB"
    assert why == (
        "132 GiB weights + 2.5 GiB KV cache (8192 tokens) + 15 GiB overhead; 4 × 80 GiB × 0.9, nvidia-a100-80gb"
    )
    assert "assumed" in reason(planned(llm("llama-3-70b-instruct")), "engine: GPU memory")[1]


def test_no_more_than_the_gpus_of_a_node_are_chosen_and_the_way_out_is_named() -> None:
    found = problem_of(llm("deepseek-r1", cls="nvidia-a100-80gb"))
    assert (found.code, found.path) == ("PL379", "spec.engine")
    assert "8 × 80 GiB × 0.9; choose worker.size: 1 or accelerator class nvidia-h200-141gb" in found.message
    assert problem_of(llm("deepseek-r1")).code == "PL380", "of unknown memory"
    assert gpus_of(llm("deepseek-r1")) == 8


def test_slices_and_claims_of_devices_are_not_judged() -> None:
    service = llm("llama-3-1-70b-instruct")
    for resources in ({"limits": {"nvidia.com/mig-3g.40gb": "1"}}, {"claims": [{"name": "gpu"}]}):
        engine = replace(service.components["engine"], runner={"image": "example/llm:1", "resources": resources})
        made = planned(replace(service, components={"engine": engine}))
        assert not {"PL379", "PL380"} & set(codes(made.warnings))
