"""Selection of an accelerator class by OME's selector: by name, or by constraints and a policy. Pure.

Classes are `ome.io/v1beta1 AcceleratorClass` documents of the catalogue. plan() takes node selector, resources and the
number of devices from the selected class.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pilotlight.catalogue.document_types import byte_count
from pilotlight.catalogue.model_memory import GIB, ModelMemory
from pilotlight.catalogue.runtime_score import ANY
from pilotlight.spec.service import Runtime

Json = Any
AcceleratorClass = Mapping[str, Json]
Classes = Sequence[AcceleratorClass]
Choice = tuple[AcceleratorClass, str]  # selected class and reason
_PERFORMANCE: Final = {"fp32": "fp32Tflops", "fp16": "fp16Tflops", "bf16": "fp16Tflops", "fp8": "int8Tops"} | {
    "int8": "int8Tops", "int4": "int4Tops",
}  # fmt: skip
_TIERS: Final = {"low": 1, "medium": 2, "high": 3}


def name_of(cls: AcceleratorClass) -> str:
    return str(cls["metadata"]["name"])


def supported_classes(runtime: Runtime | None, classes: Sequence[AcceleratorClass]) -> list[AcceleratorClass]:
    """Return the classes that a runtime supports, in its order; `*` is all, by name."""
    named = list(runtime.accelerators.get("acceleratorClasses", [])) if runtime is not None else []
    by_name = {name_of(cls): cls for cls in classes}
    if runtime is None or not named or ANY in named:
        rest = sorted(name for name in by_name if name not in named)
        named = [name for name in named if name != ANY] + rest
    return [by_name[name] for name in dict.fromkeys(named) if name in by_name]


def select_accelerator(
    selector: Mapping[str, Json], classes: Sequence[AcceleratorClass], model: ModelMemory | None
) -> tuple[AcceleratorClass | None, tuple[str, ...]]:
    """Return the selected class, or None, with the reasons for it and against the others."""
    named = selector.get("acceleratorClass")
    if named:
        cls = next((each for each in classes if name_of(each) == named), None)
        if cls is None:
            known = ", ".join(sorted(map(name_of, classes))) or "none"
            return None, (f"unknown accelerator class {named}; known: {known}",)
        return cls, (f"{named}: acceleratorClass names it",)
    constraints = selector.get("constraints") or {}
    policy = selector.get("policy") or ("BestFit" if constraints else "")
    if not policy:
        return None, ("no accelerator is requested",)
    violated = {name_of(cls): _violated_constraint(cls, constraints) for cls in classes}
    fitting = [cls for cls in classes if not violated[name_of(cls)]]
    rejected = [f"{name}: {reason}" for name, reason in violated.items() if reason]
    if not fitting:
        return None, (*rejected, "no accelerator class meets the constraints")
    chosen, reason = _POLICIES[policy](fitting, constraints, model)
    return chosen, (*rejected, f"{name_of(chosen)}: {policy}, {reason}")


def _devices(cls: AcceleratorClass, model: ModelMemory | None) -> int:
    return model.gpus_needed(memory_bytes(cls)) if model is not None else 1


def memory_bytes(cls: AcceleratorClass) -> int:
    """Return the memory of one device. OME's `memoryGB` is a quantity (`80Gi`); a bare number means gigabytes."""
    text = str(_capabilities(cls).get("memoryGB", ""))
    return int(float(text) * GIB) if text.replace(".", "", 1).isdigit() else byte_count(text) or 0 if text else 0


def _capabilities(cls: AcceleratorClass) -> Mapping[str, Json]:
    return dict(cls["spec"].get("capabilities") or {})


def _violated_constraint(cls: AcceleratorClass, constraints: Mapping[str, Json]) -> str:
    """Return the first constraint that a class violates, or "". minComputePerformanceTFLOPS only ranks, as in OME."""
    capabilities = _capabilities(cls)
    if name_of(cls) in constraints.get("excludedClasses", ()):
        return "excludedClasses names it"
    families = {str(family).lower() for family in constraints.get("architectureFamilies", ())}
    family = str(cls["spec"].get("family", "")).lower()
    if families and not families & {family, f"{cls['spec'].get('vendor', '')}-{family}".lower()}:
        return f"family {family or 'unknown'} is not among architectureFamilies"
    if reason := _violated_memory_constraint(cls, constraints):
        return reason
    features = {str(feature).lower() for feature in capabilities.get("features", ())}
    missing = [feature for feature in constraints.get("requiredFeatures", ()) if str(feature).lower() not in features]
    if missing:
        return f"it lacks {', '.join(missing)} of requiredFeatures"
    wanted, version = constraints.get("minArchitectureVersion"), str(capabilities.get("computeCapability", ""))
    if wanted and _numbers(version) < _numbers(str(wanted)):
        return f"compute capability {version or 'unknown'} is below minArchitectureVersion {wanted}"
    return ""


def _violated_memory_constraint(cls: AcceleratorClass, constraints: Mapping[str, Json]) -> str:
    memory = memory_bytes(cls) // GIB
    least, most = constraints.get("minMemory"), constraints.get("maxMemory")
    if (least is not None or most is not None) and not memory:
        return "its memory is unknown"
    if least is not None and memory < least:
        return f"{memory} GiB is below minMemory {least}"
    if most is not None and memory > most:
        return f"{memory} GiB is above maxMemory {most}"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers: 10.0 is above 9.0."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _tflops(cls: AcceleratorClass, precisions: Sequence[str]) -> tuple[float, float]:
    """Return TFLOPS at the first preferred precision that the class states, and OME's discount for its rank."""
    stated = _capabilities(cls).get("performance") or {}
    if not precisions:
        return max((float(stated.get(key, 0)) for key in _PERFORMANCE.values()), default=0.0), 1.0
    for rank, precision in enumerate([*precisions, "fp16"]):
        value = float(stated.get(_PERFORMANCE.get(str(precision).lower(), ""), 0))
        if value:
            return value, 0.5**rank
    return 0.0, 0.0


def _best_fit(classes: Classes, constraints: Mapping[str, Json], model: ModelMemory | None) -> Choice:
    """Select by OME's score: 70 % used memory, 30 % required compute; without minMemory the model's size counts."""
    need = float(model.needed(1)) if model is not None else 0.0
    if constraints.get("minMemory"):
        need = float(constraints["minMemory"]) * GIB
    required = float(constraints.get("minComputePerformanceTFLOPS") or 0)
    precisions = constraints.get("preferredPrecisions", ())

    def score(cls: AcceleratorClass) -> float:
        offered = memory_bytes(cls) * _devices(cls, model)
        memory = min(need / offered, 1.0) if need and offered else 0.0 if need else 1.0
        tflops, discount = _tflops(cls, precisions)
        # Without a required compute any stated value counts fully.
        compute = (min(tflops / required, 1.0) if required else float(tflops > 0)) * discount
        return 0.7 * memory + 0.3 * compute

    best = max(sorted(classes, key=name_of), key=score)
    return best, f"score {score(best):.2f} of {len(classes)} classes" + (f" for {need / 1e9:.0f} GB" if need else "")


def _cheapest(classes: Classes, constraints: Mapping[str, Json], model: ModelMemory | None) -> Choice:
    """Select by hourly price (spot before list) where any class has one, else per million tokens, else by tier."""
    costs = {name_of(cls): cls["spec"].get("cost") or {} for cls in classes}
    ordered = sorted(_fast_enough(classes, constraints), key=name_of)

    def least(what: str, price: Callable[[Mapping[str, Json]], Json], times: bool) -> Choice | None:
        priced = [cls for cls in ordered if price(costs[name_of(cls)]) is not None]
        if not priced:
            return None
        count = {name_of(cls): _devices(cls, model) if times else 1 for cls in priced}
        best = min(priced, key=lambda cls: float(price(costs[name_of(cls)])) * count[name_of(cls)])
        return best, f"{price(costs[name_of(best)])} {what}" + (f" × {count[name_of(best)]}" if times else "")

    return (
        least("an hour", lambda cost: cost.get("spotPerHour", cost.get("perHour")), True)
        or least("per million tokens", lambda cost: cost.get("perMillionTokens"), False)
        or least("of 3 in tier", lambda cost: _TIERS.get(str(cost.get("tier", "")).lower()), False)
        or (ordered[0], "no class states a cost, the first by name")
    )


def _most_capable(classes: Classes, constraints: Mapping[str, Json], model: ModelMemory | None) -> Choice:
    """Select by OME's score: 50 % memory, 30 % bandwidth, 20 % compute, each relative to the best candidate."""
    precisions = constraints.get("preferredPrecisions") or ("fp16",)

    def raw(cls: AcceleratorClass) -> tuple[float, float, float]:
        bandwidth = byte_count(str(_capabilities(cls).get("memoryBandwidthGBps", 0))) or 0
        return float(memory_bytes(cls)), float(bandwidth), _tflops(cls, precisions)[0]

    most = [max(values) or 1.0 for values in zip(*map(raw, classes), strict=True)]

    def score(cls: AcceleratorClass) -> float:
        return sum(weight * value / top for weight, value, top in zip((0.5, 0.3, 0.2), raw(cls), most, strict=True))

    best = max(sorted(_fast_enough(classes, constraints), key=name_of), key=score)
    return best, f"score {score(best):.2f} of {len(classes)} classes"


def _first_available(classes: Classes, constraints: Mapping[str, Json], model: ModelMemory | None) -> Choice:
    return _fast_enough(classes, constraints)[0], "the first that meets the constraints"


def _fast_enough(classes: Sequence[AcceleratorClass], constraints: Mapping[str, Json]) -> Sequence[AcceleratorClass]:
    """Return the classes that reach minComputePerformanceTFLOPS, or all where none does."""
    required = float(constraints.get("minComputePerformanceTFLOPS") or 0)
    precisions = constraints.get("preferredPrecisions", ())
    return [cls for cls in classes if _tflops(cls, precisions)[0] >= required] or classes


_POLICIES: Final[Mapping[str, Callable[[Classes, Mapping[str, Json], ModelMemory | None], Choice]]] = {
    "BestFit": _best_fit,
    "Cheapest": _cheapest,
    "MostCapable": _most_capable,
    "FirstAvailable": _first_available,
}
