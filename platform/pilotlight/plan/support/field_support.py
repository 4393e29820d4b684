"""Table of field support: every field of a component in every mode is honoured, without effect, or refused.

Shown in docs/modes.md; plan() takes its PL360 warnings from it. The errors of refused fields are raised by other
modules of plan().
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from pilotlight.k8s.knative_features import KNATIVE_POD_FIELDS, POD_FLAGS
from pilotlight.plan import document_annotations
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.types import DecisionLog, Mode

Verdict = Literal["honoured", "no effect", "refused"]
MODES: Final[tuple[Mode, ...]] = ("serverless", "raw", "multi-node", "stateful")


class FieldSupport(NamedTuple):
    """Support of a field in a mode. `code` is the warning about a field without effect; pod_security.py emits PL359."""

    verdict: Verdict
    how: str
    code: str = "PL360"


class FieldRow(NamedTuple):
    """One field by its name in OME, and in KServe where that differs; its support in each of MODES."""

    field: str
    is_set: Callable[[PlanContext], bool]
    cells: tuple[FieldSupport, FieldSupport, FieldSupport, FieldSupport]
    kserve: str = ""

    def cell(self, mode: Mode) -> FieldSupport:
        return self.cells[MODES.index(mode)]

    def path(self, context: PlanContext) -> str:
        own = self.kserve if context.service.group == "kserve" and self.kserve else self.field
        return context.path(own)


def yes(how: str) -> FieldSupport:
    return FieldSupport("honoured", how)


def no(why: str) -> FieldSupport:
    return FieldSupport("no effect", why)


def left_out(why: str) -> FieldSupport:
    return FieldSupport("no effect", why, "PL359")


def refused(why: str) -> FieldSupport:
    return FieldSupport("refused", why)


def everywhere(how: str) -> tuple[FieldSupport, FieldSupport, FieldSupport, FieldSupport]:
    return (yes(how), yes(how), yes(how), yes(how))


def but_serverless(cell: FieldSupport, how: str) -> tuple[FieldSupport, FieldSupport, FieldSupport, FieldSupport]:
    return (cell, yes(how), yes(how), yes(how))


def _pod_row(name: str) -> FieldRow:
    """Return the row of a passed-through pod field: as it is, behind a Knative flag, or dropped for Knative."""
    if name in POD_FLAGS:
        cell = yes(_FLAGGED)
    else:
        cell = yes(_IN_POD) if name in KNATIVE_POD_FIELDS else left_out("Knative refuses it, so it is left out")
    return FieldRow(name, _pod(name), but_serverless(cell, _IN_POD))


def _pod(name: str) -> Callable[[PlanContext], bool]:
    return lambda context: bool(context.component.pod.get(name))


def _has(name: str) -> Callable[[PlanContext], bool]:
    return lambda context: getattr(context.component, name) not in (None, (), {}, "")


def _has_metric(*kinds: str) -> Callable[[PlanContext], bool]:
    return lambda context: any(metric.kind in kinds for metric in context.component.metrics)


def _has_keda(name: str) -> Callable[[PlanContext], bool]:
    def is_set(context: PlanContext) -> bool:
        config = context.component.keda
        return config is not None and bool(getattr(config, name))

    return is_set


def _is_confidential(context: PlanContext) -> bool:
    model = context.component.model
    return model is not None and bool(model.confidential.get("enabled"))


_KNATIVE_SCALES: Final = no("Knative scales it, and Knative cannot see latency or queries; use raw for KEDA")
_ONE_GROUP: Final = no("only a multi-node component has a leader and workers")
_FLAGGED: Final = "pod template; Knative needs a feature flag, which requirements list"
_IN_POD: Final = "pod template"

# Pod fields without a row of their own.
PASSED_ON: Final = (
    "activeDeadlineSeconds", "dnsConfig", "dnsPolicy", "enableServiceLinks", "hostAliases", "hostIPC", "hostNetwork",
    "hostPID", "hostUsers", "hostname", "hostnameOverride", "imagePullSecrets", "initContainers", "nodeName", "os",
    "overhead", "preemptionPolicy", "priority", "priorityClassName", "readinessGates", "resourceClaims",
    "restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates", "securityContext", "serviceAccount",
    "setHostnameAsFQDN", "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds",
    "topologySpreadConstraints",
)  # fmt: skip

TABLE: Final[tuple[FieldRow, ...]] = (
    FieldRow("serviceAccountName", _pod("serviceAccountName"), everywhere("pod template, instead of our account")),
    _pod_row("nodeSelector"),
    _pod_row("tolerations"),
    _pod_row("affinity"),
    FieldRow("volumes", _pod("volumes"), everywhere("pod template, beside the model's volumes")),
    FieldRow("containers", _pod("containers"), everywhere(
        "sidecars of the main container, or the main container itself")),
    FieldRow("minReplicas", _has("min_replicas"), (
        yes("min-scale; 0 scales to zero"), yes("autoscaler's minimum; 0 needs KEDA and a request trigger"),
        yes("groups, not pods"), yes("replicas"),
    )),
    FieldRow("maxReplicas", _has("max_replicas"), (
        yes("max-scale"), yes("autoscaler's maximum"), yes("groups, not pods"), yes("where an autoscaler is asked for"),
    )),
    FieldRow("scaleTarget", _has("scale_target"), (
        yes("target; requests in flight unless scaleMetric says otherwise"), yes("HPA: percent; KEDA: per replica"),
        yes("HPA: percent; KEDA: per replica"), yes("with an autoscaler"),
    )),
    FieldRow("scaleMetric", _has("scale_metric"), (
        yes("concurrency, rps: Knative's autoscaler; cpu, memory: its HPA class, refused at minReplicas 0"),
        yes("cpu, memory: HPA; concurrency, rps: KEDA"), yes("cpu, memory: HPA; concurrency, rps: KEDA"),
        yes("concurrency, rps: KEDA"),
    )),
    FieldRow("scaleMetricType", _has("scale_metric_type"), but_serverless(
        no("Knative's targets have no type"), "Utilization, or an amount per pod")),
    FieldRow("autoScaling.metrics (Resource)", _has_metric("resource"), everywhere("HPA, or Knative's HPA class")),
    FieldRow("autoScaling.metrics (External, PodMetric)", _has_metric("external", "pod"), but_serverless(
        _KNATIVE_SCALES, "KEDA trigger; Value or AverageValue as written, Value for a latency")),
    FieldRow("autoScaling.behavior", _has("behavior"), but_serverless(
        no("Knative has no such policies; use its scale-down-delay and window annotations"), "passed on whole")),
    FieldRow("containerConcurrency", _has("container_concurrency"), but_serverless(
        yes("hard limit in Knative's proxy"), "our predictor's queue; a foreign server is warned about")),
    FieldRow("timeoutSeconds", _has("timeout_seconds"), (
        yes("revision, start of response, predictor"), yes("route, predictor, termination grace"),
        yes("route, predictor, termination grace"), yes("route, predictor, termination grace"),
    ), "timeout"),
    FieldRow("canaryTrafficPercent", _has("canary_traffic_percent"), (
        yes("two revisions by name"), yes("two Deployments and a weighted route"), yes("two sets and a weighted route"),
        refused("one identity per replica: there is no second side"),
    )),
    FieldRow("deploymentStrategy", _has("deployment_strategy"), (
        no("Knative always starts the new revision beside the old one"), yes("as written"),
        no("a LeaderWorkerSet has no such strategy; it surges where there are devices"),
        no("a StatefulSet replaces its pods one by one"),
    )),
    FieldRow("labels", _has("labels"), everywhere("pods")),
    FieldRow("annotations", _has("annotations"), everywhere("pods; those that decide something decide it")),
    FieldRow("minAvailable", _has("min_available"), but_serverless(
        no("Knative's activator covers for a pod that is evicted"), "PodDisruptionBudget")),
    FieldRow("maxUnavailable", _has("max_unavailable"), but_serverless(
        no("Knative's activator covers for a pod that is evicted"), "PodDisruptionBudget")),
    FieldRow("kedaConfig.enableKeda", _has_keda("enabled"), but_serverless(_KNATIVE_SCALES, "KEDA scales")),
    FieldRow("kedaConfig.promServerAddress", _has_keda("server_address"), but_serverless(_KNATIVE_SCALES, "trigger")),
    FieldRow("kedaConfig.customPromQuery", _has_keda("query"), but_serverless(
        _KNATIVE_SCALES, "trigger, guarded; %s is the service")),
    FieldRow("kedaConfig.scalingThreshold", _has_keda("threshold"), but_serverless(_KNATIVE_SCALES, "trigger")),
    FieldRow("kedaConfig.scalingOperator", _has_keda("operator"), but_serverless(
        _KNATIVE_SCALES, "GreaterThanOrEqual as it is, LessThanOrEqual as the inverted ratio")),
    FieldRow("kedaConfig.authenticationRef", _has_keda("authentication"), but_serverless(_KNATIVE_SCALES, "trigger")),
    FieldRow("kedaConfig.authModes", _has_keda("auth_modes"), but_serverless(_KNATIVE_SCALES, "trigger")),
    FieldRow("runner", _has("runner"), everywhere("main container")),
    FieldRow("leader", _has("leader"), (refused("several nodes cannot be one Knative revision"), _ONE_GROUP,
        yes("pod template of the leader"), _ONE_GROUP)),
    FieldRow("worker", _has("worker"), (refused("several nodes cannot be one Knative revision"), _ONE_GROUP,
        yes("pod template and number of the workers"), _ONE_GROUP), "workerSpec"),
    FieldRow("batcher", _has("batcher"), everywhere("our predictor's batching; a foreign server is warned about")),
    FieldRow("logger", _has("logger"), (no("requests are not copied to a logger; use access logs or traces"),) * 4),
    FieldRow("storageUris", _has("storage_uris"), everywhere("a folder each: claims mounted, the rest fetched")),
    FieldRow("storageContainerName", _has("storage_container"), (
        no("our own fetch is the only storage container"),) * 4),
    FieldRow("model.confidential", _is_confidential, (refused("nothing here decrypts a model"),) * 4),
    FieldRow("acceleratorOverride", _has("accelerator"), everywhere("node selector and devices of the class")),
    FieldRow("resources", _pod("resources"), everywhere("the runner's in OME's documents, the pod's in KServe's")),
    FieldRow("automountServiceAccountToken", _pod("automountServiceAccountToken"), but_serverless(
        yes("true is left out, which means the same to Knative"), _IN_POD)),
    *(_pod_row(name) for name in PASSED_ON),
)  # fmt: skip


def check_fields(context: PlanContext, log: DecisionLog) -> None:
    """Warn about every field that is set and has no effect in the component's mode."""
    if context.mode == "virtual":
        return
    for row in TABLE:
        cell = row.cell(context.mode)
        if cell.verdict == "no effect" and cell.code == "PL360" and row.is_set(context):
            log.warn("PL360", row.path(context).partition(" (")[0], f"has no effect in {context.mode} mode: {cell.how}")
    config = context.service.keda
    if context.serverless and context.serves_model and config is not None and config.enabled is not False:
        log.warn("PL360", "spec.kedaConfig", f"has no effect in serverless mode: {_KNATIVE_SCALES.how}")
    _check_annotations(context, log)
    _check_foreign(context, log)


def _check_annotations(context: PlanContext, log: DecisionLog) -> None:
    """Warn about annotations of another autoscaler."""
    for_deployments = (
        *document_annotations.AUTOSCALER_CLASS,
        document_annotations.TRIGGERS,
        document_annotations.FORMULA,
        document_annotations.WAKE_BY,
    )
    for key in {**context.service.annotations, **context.component.annotations}:
        if context.serverless and key in for_deployments:
            log.warn("PL360", context.annotation_path(key), f"has no effect in serverless mode: {_KNATIVE_SCALES.how}")
        elif not context.serverless and key.startswith(document_annotations.KNATIVE_SCALING):
            message = f"has no effect in {context.mode} mode: Knative does not scale it"
            log.warn("PL360", context.annotation_path(key), message)


def _check_foreign(context: PlanContext, log: DecisionLog) -> None:
    """Report features that only our predictor has, for other servers."""
    component = context.component
    if _is_confidential(context):
        log.error("PL364", context.path("model.confidential"), "nothing here decrypts a model; serve it as it is")
    if context.choice.is_pilotlight:
        return
    if component.batcher is not None:
        log.warn("PL361", context.path("batcher"), "the server is not ours and must batch by itself")
    if component.container_concurrency and not context.serverless:
        message = "the server is not ours, and nothing limits its requests in this mode; use the server's own setting"
        log.warn("PL361", context.path("containerConcurrency"), message)


def markdown() -> str:
    """Return the table of docs/modes.md."""
    head = ["field", *MODES]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in TABLE:
        name = f"`{row.field}`" + (f", KServe `{row.kserve}`" if row.kserve else "")
        cells = [cell.how if cell.verdict == "honoured" else f"**{cell.verdict}**: {cell.how}" for cell in row.cells]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)
