"""Rules for the resources of a model's containers: GPUs, memory, CPU, shared memory."""

import re
from typing import Final

from pilotlight.lint.objects import PODS, amount, containers, gpu_entries, gpus, name
from pilotlight.lint.parts import Part
from pilotlight.lint.rule import Hits, LintContext, rule
from pilotlight.spec import sizes

GPU_IMAGE: Final = re.compile(r"vllm|sglang|tensorrt|trtllm|text-generation-inference|\bnim\b|cuda|[-_:.]gpu\b", re.I)
CPU_IMAGE: Final = re.compile(r"[-_:./]cpu\b", re.I)
LEAST_CPU_PER_GPU: Final = 1.0
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - a mount in a pod


@rule(
    "PL482", "error", "GPU request without an equal limit", *PODS,
    why="""GPUs cannot be overcommitted: Kubernetes takes the limit for the request and refuses a request alone, or one
        that differs.""",
    fix="""
        resources: {limits: {nvidia.com/gpu: "1"}}""",
)  # fmt: skip
def gpu_request(workload: Part, _: LintContext) -> Hits:
    for container in containers(workload):
        for entry in gpu_entries(container.get("resources", "requests")):
            limit = container.get("resources", "limits", entry.key)
            if not limit or amount(limit) != amount(entry):
                message = f"{entry.key} = {entry.text()}, the limit is {limit.text('not set')}; write the same there"
                yield entry, message


@rule(
    "PL483", "warning", "memory below twice the model", *PODS,
    why="""While a model loads, its file and its tensors are in memory at once, and runtimes keep buffers beside them.
        Below twice its size the kernel ends the pod in the middle of the load (OOMKilled), and again after each
        restart.""",
    fix="""
        resources: {requests: {memory: 32Gi}, limits: {memory: 32Gi}}     # a model of 16 GB""",
)  # fmt: skip
def small_memory(workload: Part, context: LintContext) -> Hits:
    size = size_of(workload, context)
    for container in list(containers(workload))[:1] if size else ():
        resources = container.get("resources")
        memory = resources.get("limits", "memory") or resources.get("requests", "memory")
        if memory and size and amount(memory) < 2 * size:
            message = f"memory = {memory.text()}, must be twice the model's {gigabytes(size)}: {gigabytes(2 * size)}"
            yield memory, message


@rule(
    "PL484", "warning", "GPU image without a GPU", *PODS,
    why="""The image is one of a GPU runtime, but no container asks for a GPU: the pod lands on any node and fails there
        at start, or runs a hundred times slower.""",
    fix="""
        resources: {limits: {nvidia.com/gpu: "1"}}""",
)  # fmt: skip
def gpu_image(workload: Part, _: LintContext) -> Hits:
    every = list(containers(workload))
    for container in every if not any(gpus(each) for each in every) else ():
        image = container.get("image").text()
        if GPU_IMAGE.search(image) and not CPU_IMAGE.search(image):
            yield container, f"{image} runs on GPUs, but resources.limits asks for none"


@rule(
    "PL485", "warning", "too little CPU beside a GPU", *PODS,
    why="""Tokenising, decoding images and copying run on the CPU. With less than one core for each GPU the device waits
        for its input, and a throttled process misses its probes.""",
    fix="""
        resources: {requests: {cpu: "4"}, limits: {nvidia.com/gpu: "1"}}""",
)  # fmt: skip
def little_cpu(workload: Part, _: LintContext) -> Hits:
    for container in containers(workload):
        count, resources = gpus(container), container.get("resources")
        cpu = resources.get("requests", "cpu") or resources.get("limits", "cpu")
        if count and amount(cpu) < LEAST_CPU_PER_GPU * count:
            message = f"cpu = {cpu.text('not set')} for {count:g} GPUs; request at least {count:g} cores"
            yield cpu or resources, message


@rule(
    "PL488", "warning", "rolling update needs spare GPUs", "Deployment",
    why="""A rolling update starts the new pod before it ends the old one (maxSurge 25 %, rounded up, unless set). On a
        full node pool the new pod stays Pending for ever, because the old one keeps the GPU that it waits for.""",
    fix="""
        strategy: {type: Recreate}
        # or: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}""",
)  # fmt: skip
def surge_gpus(deployment: Part, _: LintContext) -> Hits:
    each, strategy = sum(gpus(container) for container in containers(deployment)), deployment.get("spec", "strategy")
    surge = strategy.get("rollingUpdate", "maxSurge").text("25%")
    if each and strategy.get("type").text("RollingUpdate") == "RollingUpdate" and surge not in {"0", "0%"}:
        part = strategy if strategy else deployment.get("spec")
        message = f"a rolling update needs {each:g} spare GPUs; write Recreate or maxSurge: 0 where there are none"
        yield part, message


@rule(
    "PL492", "warning", "shared memory of 64 MB beside a GPU", *PODS,
    why="""Containers get 64 MB of /dev/shm. GPU runtimes pass tensors between their processes through it and end with
        "bus error" or "unable to open shared memory" when it is full.""",
    fix="""
        volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}]
        volumeMounts: [{name: shm, mountPath: /dev/shm}]""",
)  # fmt: skip
def shared_memory(workload: Part, _: LintContext) -> Hits:
    for container in containers(workload):
        mounts = {mount.get("mountPath").text() for mount in container.get("volumeMounts").each()}
        if gpus(container) > 1 and SHARED_MEMORY not in mounts:
            message = f"{gpus(container):g} GPUs and no {SHARED_MEMORY}: mount a memory-backed emptyDir of at least 1Gi"
            yield container, message


def size_of(workload: Part, context: LintContext) -> int | None:
    """Return the model's bytes: given by the caller, or of the linted BaseModel that the pod's label names."""
    if name(workload) in context.model_bytes:
        return context.model_bytes[name(workload)]
    called = workload.get("spec", "template", "metadata", "labels", "ome.io/base-model-name").text()
    for model in context.of_kind("BaseModel", "ClusterBaseModel") if called else ():
        spec = model.get("spec")
        if name(model) == called:
            return sizes.weights_size(spec.get("modelParameterSize").text(), spec.get("quantization").text())[0] or None
    return None


def gigabytes(size: float) -> str:
    return f"{size / 2**30:.0f}Gi" if size >= 100 * 2**30 else f"{size / 2**30:.3g}Gi"
