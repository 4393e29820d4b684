"""Which accelerator class a selector means: by name, by constraints, by policy."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.platform.catalogue.catalogue_cases import model, runtime

from pilotlight.catalogue.accelerator_selection import name_of, select_accelerator, supported_classes
from pilotlight.catalogue.catalogue import builtin
from pilotlight.catalogue.model_memory import memory_of
from pilotlight.spec.service import BaseModel

CLASSES = builtin().accelerators


def cls(name: str, memory: str = "16Gi", **spec: Any) -> dict[str, Any]:
    capabilities = {"memoryGB": memory} | spec.pop("capabilities", {})
    return {"metadata": {"name": name}, "spec": {"capabilities": capabilities, **spec}}


def chosen(selector: dict[str, Any], *classes: Mapping[str, Any], served: BaseModel | None = None) -> str:
    found, reasons = select_accelerator(selector, classes or CLASSES, memory_of(served, {}))
    assert reasons
    return name_of(found) if found else ""


@pytest.mark.parametrize(
    ("constraints", "policy", "expected"),
    [
        ({"minMemory": 40}, "BestFit", "nvidia-a100-40gb"),
        ({"minMemory": 81, "maxMemory": 150}, "BestFit", "nvidia-h200-141gb"),
        ({"minMemory": 16, "requiredFeatures": ["nvlink"]}, "BestFit", "nvidia-v100-32gb"),
        ({"minMemory": 80, "requiredFeatures": ["FP8"]}, "BestFit", "nvidia-h100-80gb"),
        ({"architectureFamilies": ["hopper"]}, "MostCapable", "nvidia-h200-141gb"),
        ({"architectureFamilies": ["nvidia-ampere"], "minMemory": 60}, "Cheapest", "nvidia-a100-80gb"),
        ({"minArchitectureVersion": "9.0"}, "MostCapable", "nvidia-b200-180gb"),
        (
            {"minArchitectureVersion": "9.0", "excludedClasses": ["nvidia-b200-180gb"]},
            "MostCapable",
            "nvidia-h200-141gb",
        ),
        ({"preferredPrecisions": ["int4"], "minMemory": 24, "maxMemory": 24}, "MostCapable", "nvidia-a10-24gb"),
        ({"minMemory": 500}, "BestFit", ""),
    ],
)
def test_constraints_filter_and_the_policy_chooses(constraints: dict[str, Any], policy: str, expected: str) -> None:
    assert chosen({"constraints": constraints, "policy": policy}) == expected


def test_compute_capability_ten_is_above_nine() -> None:
    ten, nine = (cls(f"cc{v}", capabilities={"computeCapability": f"{v}.0"}) for v in (10, 9))
    selector = {"constraints": {"minArchitectureVersion": "9.5"}, "policy": "FirstAvailable"}
    assert chosen(selector, nine, ten) == "cc10"


def test_a_class_by_name_is_taken_and_an_unknown_one_told() -> None:
    assert chosen({"acceleratorClass": "nvidia-t4-16gb", "policy": "MostCapable"}) == "nvidia-t4-16gb"
    found, reasons = select_accelerator({"acceleratorClass": "h100"}, [cls("t4")], None)
    assert (found, reasons) == (None, ("unknown accelerator class h100; known: t4",))


def test_without_a_selector_nothing_is_chosen() -> None:
    assert select_accelerator({}, CLASSES, None) == (None, ("no accelerator is requested",))


def test_constraints_alone_mean_best_fit() -> None:
    assert chosen({"constraints": {"minMemory": 24}}) == chosen({"constraints": {"minMemory": 24}, "policy": "BestFit"})


def test_every_class_that_is_passed_over_says_why() -> None:
    _, reasons = select_accelerator({"constraints": {"minMemory": 20}}, [cls("small"), cls("big", "24Gi")], None)
    assert reasons[0] == "small: 16 GiB is below minMemory 20"
    assert reasons[1].startswith("big: BestFit")


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        (({"perHour": "2"}, {"perHour": "1"}), "b"),
        (({"perHour": "2", "spotPerHour": "0.5"}, {"perHour": "1"}), "a"),
        (({"tier": "low"}, {"perHour": "9"}), "b"),
        (({"perMillionTokens": "3"}, {"perMillionTokens": "2", "tier": "high"}), "b"),
        (({"tier": "medium"}, {"tier": "low"}), "b"),
        (({}, {}), "a"),
    ],
)
def test_the_cheapest_is_by_the_hour_then_per_token_then_by_tier(
    costs: tuple[dict[str, str], ...], expected: str
) -> None:
    classes = [cls(name, cost=cost) for name, cost in zip("ab", costs, strict=True)]
    assert chosen({"policy": "Cheapest"}, *classes) == expected


def test_the_cheapest_counts_every_device_that_the_model_needs() -> None:
    small, large = cls("small", "16Gi", cost={"perHour": "1"}), cls("large", "80Gi", cost={"perHour": "3"})
    assert chosen({"policy": "Cheapest"}, small, large, served=model(size_bytes=50 * 10**9)) == "large"


def test_the_best_fit_is_for_the_models_size_where_no_memory_is_asked_for() -> None:
    assert chosen({"policy": "BestFit"}, served=model(size_bytes=8 * 10**9)) == "nvidia-t4-16gb"


def test_speed_asked_for_ranks_and_never_refuses() -> None:
    slow, fast = (cls(n, capabilities={"performance": {"fp16Tflops": t}}) for n, t in (("slow", 60), ("zfast", 300)))
    selector = {"constraints": {"minComputePerformanceTFLOPS": 200}, "policy": "FirstAvailable"}
    assert chosen(selector, slow, fast) == "zfast"
    assert chosen(selector, slow) == "slow"


def test_first_available_follows_the_runtimes_list() -> None:
    listed = runtime("r", accelerators={"acceleratorClasses": ["nvidia-t4-16gb", "nvidia-h100-80gb", "gone"]})
    assert [name_of(c) for c in supported_classes(listed, CLASSES)] == ["nvidia-t4-16gb", "nvidia-h100-80gb"]
    assert chosen({"policy": "FirstAvailable"}, *supported_classes(listed, CLASSES)) == "nvidia-t4-16gb"
    anything = runtime("r", accelerators={"acceleratorClasses": ["nvidia-t4-16gb", "*"]})
    assert len(supported_classes(anything, CLASSES)) == len(CLASSES)
    assert name_of(supported_classes(anything, CLASSES)[0]) == "nvidia-t4-16gb"
