"""Rules for Deployments, StatefulSets, LeaderWorkerSets and HPAs: replicas, probes, rollouts, drains, resources."""

import re
from typing import Final

from pilotlight.catalogue import document_types
from pilotlight.contract import ENV_ACCESS_FILE, is_predictor_image
from pilotlight.k8s.names import ACCESS_ANNOTATIONS
from pilotlight.lint.object_accessors import (
    amount,
    autoscalers_of,
    containers,
    gpu_entries,
    gpus,
    name,
    namespace,
    probe_budget,
    serves_model,
    startup_budget,
)
from pilotlight.lint.rule import WORKLOADS, Hits, LintContext, Part, kind_of, rule

DEFAULT_PROGRESS_DEADLINE: Final = 600
# Time to load a model of a few GB; a liveness probe that fails earlier kills the load.
LOADING_SECONDS: Final = 120
GPU_IMAGE: Final = re.compile(r"vllm|sglang|tensorrt|trtllm|text-generation-inference|\bnim\b|cuda|[-_:.]gpu\b", re.I)
CPU_IMAGE: Final = re.compile(r"[-_:./]cpu\b", re.I)
LEAST_CPU_PER_GPU: Final = 1.0
MODE_ANNOTATIONS: Final = ("serving.kserve.io/deploymentMode", "ome.io/deploymentMode")
RAW_MODES: Final = frozenset({"Standard", "RawDeployment", "Stateful", "MultiNode"})
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - a mount in a pod


@rule("PL479")
def value_not_string(part: Part, _: LintContext) -> Hits:
    for metadata in (part.get("metadata"), part.get("spec", "template", "metadata")):
        for field in ("annotations", "labels"):
            for entry in metadata.get(field).entries():
                if not isinstance(entry.value, str):
                    yield entry, f"{entry.key} = {entry.display}, must be a string in quotes"


@rule("PL480")
def replicas_owned(workload: Part, context: LintContext) -> Hits:
    replicas = workload.get("spec", "replicas")
    for scaler in autoscalers_of(workload, context) if replicas else ():
        owner = f"{kind_of(scaler)} {name(scaler)}"
        yield replicas, f"replicas = {replicas.text()} overrides {owner} at each apply; delete the field"


@rule("PL481")
def same_probes(workload: Part, _: LintContext) -> Hits:
    for container in containers(workload):
        live, ready = container.get("livenessProbe"), container.get("readinessProbe")
        for action in ("httpGet", "exec", "grpc"):
            if live.get(action) and live.get(action).value == ready.get(action).value:
                message = "it equals readinessProbe, so a busy pod is restarted; probe only that the process is alive"
                yield live, message


@rule("PL486")
def no_budget(workload: Part, context: LintContext) -> Hits:
    labels = workload.get("spec", "template", "metadata", "labels").value
    counts = [
        scaler.get("spec", field).integer(0)
        for scaler in autoscalers_of(workload, context)
        for field in ("minReplicaCount", "minReplicas")
    ]
    least = max([workload.get("spec", "replicas").integer(1 if not counts else 0), *counts])
    budgets = (part for part in context.of_kind("PodDisruptionBudget") if namespace(part) == namespace(workload))
    if least >= 2 and not any(selects(budget, labels) for budget in budgets):
        message = f"{least} replicas and no PodDisruptionBudget: a drain takes all at once; add one"
        yield workload.get("metadata", "name"), message


@rule("PL487")
def short_deadline(deployment: Part, _: LintContext) -> Hits:
    setting, budget = deployment.get("spec", "progressDeadlineSeconds"), startup_budget(deployment)
    deadline = setting.integer(DEFAULT_PROGRESS_DEADLINE)
    if deadline < budget:
        message = (
            f"the startup probe allows {budget:g} s, but progressDeadlineSeconds is {deadline}"
            f"{'' if setting else ' (the default)'}; set it above"
        )
        yield setting or deployment.get("spec"), message


@rule("PL489")
def no_readiness(workload: Part, context: LintContext) -> Hits:
    every = list(containers(workload)) if serves_model(workload, context) else []
    if every and not any(container.get("readinessProbe") for container in every):
        yield every[0], "no container has a readinessProbe: traffic arrives before the model is loaded; add one"


@rule("PL490")
def liveness_kills_load(workload: Part, context: LintContext) -> Hits:
    for container in containers(workload) if serves_model(workload, context) else ():
        live = container.get("livenessProbe")
        budget = probe_budget(live)
        may_fail = "live" not in live.get("httpGet", "path").text()  # `/live` and the like respond during the load
        if live and not container.get("startupProbe") and budget < LOADING_SECONDS and may_fail:
            message = f"restarts the container {budget:g} s after its start, while the model loads; add a startupProbe"
            yield live, message


@rule("PL491")
def hpa_at_zero(hpa: Part, _: LintContext) -> Hits:
    minimum = hpa.get("spec", "minReplicas")
    if minimum and minimum.integer(1) == 0:
        yield minimum, "minReplicas = 0 is rejected without the feature gate HPAScaleToZero; use a ScaledObject"


@rule("PL482")
def gpu_request(workload: Part, _: LintContext) -> Hits:
    for container in containers(workload):
        for entry in gpu_entries(container.get("resources", "requests")):
            limit = container.get("resources", "limits", entry.key)
            if not limit or amount(limit) != amount(entry):
                yield entry, f"{entry.key} = {entry.text()}, the limit is {limit.text('not set')}; write the same there"


@rule("PL483")
def small_memory(workload: Part, context: LintContext) -> Hits:
    size = size_of(workload, context)
    for container in list(containers(workload))[:1] if size else ():
        resources = container.get("resources")
        memory = resources.get("limits", "memory") or resources.get("requests", "memory")
        if memory and size and amount(memory) < 2 * size:
            message = f"memory = {memory.text()}, must be twice the model's {gigabytes(size)}: {gigabytes(2 * size)}"
            yield memory, message


@rule("PL484")
def gpu_image(workload: Part, _: LintContext) -> Hits:
    every = list(containers(workload))
    for container in every if not any(gpus(each) for each in every) else ():
        image = container.get("image").text()
        if GPU_IMAGE.search(image) and not CPU_IMAGE.search(image):
            yield container, f"{image} needs GPUs, but resources.limits has none"


@rule("PL485")
def little_cpu(workload: Part, _: LintContext) -> Hits:
    for container in containers(workload):
        count, resources = gpus(container), container.get("resources")
        cpu = resources.get("requests", "cpu") or resources.get("limits", "cpu")
        if count and amount(cpu) < LEAST_CPU_PER_GPU * count:
            yield cpu or resources, f"cpu = {cpu.text('not set')} for {count:g} GPUs; request at least {count:g} cores"


@rule("PL488")
def surge_gpus(deployment: Part, _: LintContext) -> Hits:
    each, strategy = sum(gpus(container) for container in containers(deployment)), deployment.get("spec", "strategy")
    surge = strategy.get("rollingUpdate", "maxSurge").text("25%")
    if each and strategy.get("type").text("RollingUpdate") == "RollingUpdate" and surge not in {"0", "0%"}:
        message = f"a rolling update needs {each:g} spare GPUs; write Recreate or maxSurge: 0 if there are none"
        yield strategy or deployment.get("spec"), message


@rule("PL492")
def shared_memory(workload: Part, _: LintContext) -> Hits:
    for container in containers(workload):
        mounts = {mount.get("mountPath").text() for mount in container.get("volumeMounts").each()}
        if gpus(container) > 1 and SHARED_MEMORY not in mounts:
            message = f"{gpus(container):g} GPUs and no {SHARED_MEMORY}: mount a memory-backed emptyDir of at least 1Gi"
            yield container, message


@rule("PL493")
def access_not_enforced(part: Part, context: LintContext) -> Hits:
    written = [entry for entry in part.get("metadata", "annotations").entries() if entry.key in ACCESS_ANNOTATIONS]
    if not written:
        return
    if kind_of(part) == "InferenceService":
        raw = {part.get("metadata", "annotations", key).text() for key in MODE_ANNOTATIONS} & RAW_MODES
        images = [image for image in _images(part) if not is_predictor_image(image)]
        if images and not raw:
            yield (
                written[0],
                f"{images[0]} does not enforce it; use mode Standard behind the gateway, or Pilotlight runtime",
            )
    elif not any(
        variable.get("name").text() == ENV_ACCESS_FILE
        for container in containers(part)
        for variable in container.get("env").each()
    ) and not (kind_of(part) in WORKLOADS and _closed(part, context)):
        yield (
            written[0],
            f"no container reads {ENV_ACCESS_FILE} and the pods admit all clients; render the service again",
        )


def _images(service: Part) -> list[str]:
    """Return the images that an InferenceService names for its components."""
    parts = [component for component in service.get("spec").entries() if component.key not in {"model", "runtime"}]
    runners = [runner for part in parts for runner in (part.get("runner"), *part.get("containers").each())]
    return [image for runner in runners if (image := runner.get("image").text())]


def _closed(workload: Part, context: LintContext) -> bool:
    """Return whether a NetworkPolicy admits only some clients to the pods, but for a port of the name `metrics`."""
    labels = _pod_labels(workload)
    ports = [port for container in containers(workload) for port in container.get("ports").each()]
    scraped = {port.get("containerPort").value for port in ports if port.get("name").text() == "metrics"}
    for policy in context.of_kind("NetworkPolicy"):
        wanted = policy.get("spec", "podSelector", "matchLabels").value
        if isinstance(wanted, dict) and wanted.items() <= labels.items() and namespace(policy) == namespace(workload):
            rules = [rule for rule in policy.get("spec", "ingress").each() if not rule.get("from")]
            admitted = [{port.get("port").value for port in rule.get("ports").each()} for rule in rules]
            return all(numbers and numbers <= scraped for numbers in admitted)
    return False


def _pod_labels(workload: Part) -> dict[str, object]:
    """Return the labels of the pods that serve; those of a LeaderWorkerSet have its name, too."""
    group = kind_of(workload) == "LeaderWorkerSet"
    path = ("spec", "leaderWorkerTemplate", "leaderTemplate") if group else ("spec", "template")
    labels = workload.get(*path, "metadata", "labels").value
    added = {"leaderworkerset.sigs.k8s.io/name": name(workload)} if group else {}
    return {**labels, **added} if isinstance(labels, dict) else {**added}


def size_of(workload: Part, context: LintContext) -> int | None:
    """Return the model's bytes: given by the caller, or of the linted BaseModel that the pod's label names."""
    if name(workload) in context.model_bytes:
        return context.model_bytes[name(workload)]
    called = workload.get("spec", "template", "metadata", "labels", "ome.io/base-model-name").text()
    for model in context.of_kind("BaseModel", "ClusterBaseModel") if called else ():
        spec = model.get("spec")
        if name(model) == called:
            return (
                document_types.weights_size(spec.get("modelParameterSize").text(), spec.get("quantization").text())[0]
                or None
            )
    return None


def selects(budget: Part, labels: object) -> bool:
    wanted = budget.get("spec", "selector", "matchLabels").value
    return not isinstance(wanted, dict) or (isinstance(labels, dict) and wanted.items() <= labels.items())


def gigabytes(size: float) -> str:
    return f"{size / 2**30:.0f}Gi" if size >= 100 * 2**30 else f"{size / 2**30:.3g}Gi"
