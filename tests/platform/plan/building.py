"""Small services built in code, and a catalogue of two runtimes: ours, and a foreign server that only listens."""

from dataclasses import replace
from typing import Any

from pilotlight.plan import plan
from pilotlight.plan.types import Capabilities, Current, Plan, Workload
from pilotlight.spec.problems import InvalidDocument, Problem, SourceLocation
from pilotlight.spec.service import (
    BaseModel,
    Catalogue,
    Component,
    KedaConfig,
    ModelSpec,
    Reference,
    Role,
    Runtime,
    Service,
    SupportedFormat,
)

GB = 10**9
OURS = "ours"
FOREIGN = "foreign"
RANKED = {"env": [{"name": "RANK", "value": "$(LWS_WORKER_INDEX)"}]}
GPU = {"resources": {"requests": {"nvidia.com/gpu": "1"}}}


def runtime(name: str, group: Any, image: str, ours: bool, protocols: tuple[str, ...] = ()) -> Runtime:
    containers = [{"name": "main", **({"image": image} if image else {})}]
    formats = (SupportedFormat("onnx", auto_select=True), SupportedFormat("safetensors", auto_select=True))
    config: dict[str, Any] = (
        {"engine": {"runner": containers[0]}, "decoder": {"runner": containers[0]}} if group == "ome" else {}
    )
    pod = {"containers": containers} if group == "kserve" else {}
    return Runtime(
        name,
        "ClusterServingRuntime",
        group,
        formats,
        pod=pod,
        is_pilotlight=ours,
        protocols=protocols,
        accelerators={"acceleratorClasses": ["*"]},
        disaggregation="llm-d" if ours else "",
        **config,
    )


CATALOGUE = Catalogue(
    runtimes=(
        runtime(OURS, "ome", "", True),
        runtime(FOREIGN, "ome", "example/server:1", False),
        runtime("llm", "ome", "example/llm:1", False, ("openAI",)),
        runtime(OURS, "kserve", "", True, ("v1", "v2", "grpc-v2")),
        runtime(FOREIGN, "kserve", "example/server:1", False, ("v1", "v2", "grpc-v2")),
    ),
    models=(
        BaseModel("small", "ClusterBaseModel", "onnx", storage_uri="s3://models/small.onnx", size_bytes=GB // 10),
        BaseModel("big", "ClusterBaseModel", "onnx", storage_uri="s3://models/big", size_bytes=30 * GB),
        BaseModel("unsized", "ClusterBaseModel", "onnx", storage_uri="s3://models/unsized"),
        BaseModel("onnode", "ClusterBaseModel", "onnx", storage={"path": "/data/onnode"}, storage_uri="s3://m/o"),
        BaseModel("claim", "ClusterBaseModel", "onnx", storage_uri="pvc://models/iris/1"),
        BaseModel("hub", "ClusterBaseModel", "onnx", storage_uri="hf://org/repo", storage={"key": "hub-token"}),
    ),
    accelerators=(
        {
            "metadata": {"name": "h100"},
            "spec": {
                "vendor": "nvidia", "family": "hopper",
                "discovery": {"nodeSelector": {"gpu": "h100"}},
                "capabilities": {"memoryGB": "80"},
                "resources": [{"name": "nvidia.com/gpu", "quantity": "1"}],
            },
        },
    ),
)  # fmt: skip


def ome(model: str = "small", runtime_name: str = OURS, name: str = "iris", **engine: Any) -> Service:
    """An OME service with one engine; keywords are fields of the engine. Its workers know their ranks."""
    if worker := engine.get("worker"):
        engine["worker"] = replace(worker, runner={**RANKED, **(worker.runner or {})})
    return Service(
        "ome", name, "demo", {"engine": Component("engine", **engine)},
        model=Reference(model, "ClusterBaseModel", "ome.io"),
        runtime=Reference(runtime_name, "ClusterServingRuntime", "ome.io"),
        locations={"spec.engine": SourceLocation("service.yaml", 7, 3), "spec": SourceLocation("service.yaml", 5, 1)},
    )  # fmt: skip


def kserve(
    runtime_name: str = OURS, uri: str = "s3://models/iris.onnx", protocol: str = "v2", **predictor: Any
) -> Service:
    model = ModelSpec("onnx", runtime=runtime_name, storage_uri=uri, protocol=protocol)
    return Service("kserve", "iris", "demo", {"predictor": Component("predictor", **({"model": model} | predictor))})


def annotated(service: Service, **annotations: str) -> Service:
    """Annotations of the service itself; `__` stands for what a keyword cannot hold."""
    return replace(service, annotations={**service.annotations, **annotations})


def with_component(service: Service, role: Role, **fields: Any) -> Service:
    return replace(service, components={**service.components, role: Component(role, **fields)})


def changed(service: Service, **fields: Any) -> Service:
    """The service with other fields in its first component."""
    role = next(iter(service.components))
    return replace(service, components={**service.components, role: replace(service.components[role], **fields)})


def raw(service: Service) -> Service:
    return in_mode(service, "RawDeployment")


def in_mode(service: Service, mode: str) -> Service:
    if service.group == "kserve":
        return annotated(service, **{"serving.kserve.io/deploymentMode": mode})
    engine = service.components["engine"]
    return changed(service, annotations={**engine.annotations, "ome.io/deploymentMode": mode})


def planned(service: Service, capabilities: Capabilities | None = None, current: Current | None = None) -> Plan:
    return plan(service, CATALOGUE, capabilities, current)


def workload(service: Service, role: Role = "engine", **how: Any) -> Workload:
    made = planned(service, **how)
    role = "predictor" if service.group == "kserve" and role == "engine" else role
    return next(work for work in made.workloads if work.role == role and not work.canary)


def refusals(service: Service, **how: Any) -> list[Problem]:
    """The errors that planning gives; an empty list means that it went through."""
    try:
        planned(service, **how)
    except InvalidDocument as refused:
        return [problem for problem in refused.problems if problem.severity == "error"]
    return []


def codes(problems: Any) -> list[str]:
    return [problem.code for problem in problems]


def keda(**fields: Any) -> KedaConfig:
    return KedaConfig(**({"enabled": True} | fields))


def reason(made: Plan, topic: str) -> tuple[str, str]:
    """Value and reason of one decision."""
    return next((found.value, found.reason) for found in made.decisions if found.topic == topic)


def env(work: Workload) -> dict[str, str]:
    variables = work.template["spec"]["containers"][0].get("env", ())
    return {variable["name"]: variable.get("value", "") for variable in variables}


def container(work: Workload) -> dict[str, Any]:
    """The main container of a workload's pods."""
    main: dict[str, Any] = spec(work)["containers"][0]
    return main


def spec(work: Workload) -> dict[str, Any]:
    pod: dict[str, Any] = work.template["spec"]
    return pod
