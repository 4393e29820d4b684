"""Every field of a component × every mode: honoured how, without effect and why, or refused and why. One table.

docs/modes.md shows it, a test walks it, and plan() takes its warnings from it. "no effect" becomes a numbered warning;
"refused" names the code of the error that another module of plan() raises.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from pilotlight.plan import annotations
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.model import Mode
from pilotlight.plan.subject import Subject
from pilotlight.pod_flags import KNATIVE_POD_FIELDS, POD_FLAGS

Verdict = Literal["honoured", "no effect", "refused"]
MODES: Final[tuple[Mode, ...]] = ("serverless", "raw", "multi-node", "stateful")


class Cell(NamedTuple):
    """`code` is that of the warning about a field without effect. PL359 is another module's: see knative_pods.py."""

    verdict: Verdict
    how: str
    code: str = "PL360"


class Row(NamedTuple):
    """`field` as OME writes it; `kserve` where KServe's name differs. `is_set` tells whether a component has it."""

    field: str
    is_set: Callable[[Subject], bool]
    cells: tuple[Cell, Cell, Cell, Cell]
    kserve: str = ""

    def cell(self, mode: Mode) -> Cell:
        return self.cells[MODES.index(mode)]

    def path(self, subject: Subject) -> str:
        own = self.kserve if subject.service.group == "kserve" and self.kserve else self.field
        return subject.path(own)


def yes(how: str) -> Cell:
    return Cell("honoured", how)


def no(why: str) -> Cell:
    return Cell("no effect", why)


def left_out(why: str) -> Cell:
    return Cell("no effect", why, "PL359")


def refused(why: str) -> Cell:
    return Cell("refused", why)


def everywhere(how: str) -> tuple[Cell, Cell, Cell, Cell]:
    return (yes(how), yes(how), yes(how), yes(how))


def but_serverless(cell: Cell, how: str) -> tuple[Cell, Cell, Cell, Cell]:
    return (cell, yes(how), yes(how), yes(how))


def _pod_row(name: str) -> Row:
    """A pod's field that we pass on: as it is, behind one of Knative's flags, or not to Knative."""
    if name in POD_FLAGS:
        cell = yes(_FLAGGED)
    else:
        cell = yes(_IN_POD) if name in KNATIVE_POD_FIELDS else left_out("Knative refuses it, so it is left out")
    return Row(name, _pod(name), but_serverless(cell, _IN_POD))


def _pod(name: str) -> Callable[[Subject], bool]:
    return lambda subject: bool(subject.component.pod.get(name))


def _has(name: str) -> Callable[[Subject], bool]:
    return lambda subject: getattr(subject.component, name) not in (None, (), {}, "")


def _has_metric(*kinds: str) -> Callable[[Subject], bool]:
    return lambda subject: any(metric.kind in kinds for metric in subject.component.metrics)


def _has_keda(name: str) -> Callable[[Subject], bool]:
    def is_set(subject: Subject) -> bool:
        config = subject.component.keda
        return config is not None and bool(getattr(config, name))

    return is_set


def _is_confidential(subject: Subject) -> bool:
    model = subject.component.model
    return model is not None and bool(model.confidential.get("enabled"))


_KNATIVE_SCALES: Final = no("Knative scales it, and Knative cannot see latency or queries; use raw for KEDA")
_ONE_GROUP: Final = no("only a multi-node component has a leader and workers")
_FLAGGED: Final = "pod template; Knative needs a feature flag, which requirements list"
_IN_POD: Final = "pod template"

# All that a pod has and no row of its own says more about.
PASSED_ON: Final = (
    "activeDeadlineSeconds", "dnsConfig", "dnsPolicy", "enableServiceLinks", "hostAliases", "hostIPC", "hostNetwork",
    "hostPID", "hostUsers", "hostname", "hostnameOverride", "imagePullSecrets", "initContainers", "nodeName", "os",
    "overhead", "preemptionPolicy", "priority", "priorityClassName", "readinessGates", "resourceClaims",
    "restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates", "securityContext", "serviceAccount",
    "setHostnameAsFQDN", "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds",
    "topologySpreadConstraints",
)  # fmt: skip

TABLE: Final[tuple[Row, ...]] = (
    Row("serviceAccountName", _pod("serviceAccountName"), everywhere("pod template, instead of our account")),
    _pod_row("nodeSelector"),
    _pod_row("tolerations"),
    _pod_row("affinity"),
    Row("volumes", _pod("volumes"), everywhere("pod template, beside the model's volumes")),
    Row("containers", _pod("containers"), everywhere("sidecars of the main container, or the main container itself")),
    Row("minReplicas", _has("min_replicas"), (
        yes("min-scale; 0 scales to zero"), yes("autoscaler's minimum; 0 needs KEDA and a request trigger"),
        yes("groups, not pods"), yes("replicas"),
    )),
    Row("maxReplicas", _has("max_replicas"), (
        yes("max-scale"), yes("autoscaler's maximum"), yes("groups, not pods"), yes("where an autoscaler is asked for"),
    )),
    Row("scaleTarget", _has("scale_target"), (
        yes("target; requests in flight unless scaleMetric says otherwise"), yes("HPA: percent; KEDA: per replica"),
        yes("HPA: percent; KEDA: per replica"), yes("with an autoscaler"),
    )),
    Row("scaleMetric", _has("scale_metric"), (
        yes("concurrency, rps: Knative's autoscaler; cpu, memory: its HPA class, refused at minReplicas 0"),
        yes("cpu, memory: HPA; concurrency, rps: KEDA"), yes("cpu, memory: HPA; concurrency, rps: KEDA"),
        yes("concurrency, rps: KEDA"),
    )),
    Row("scaleMetricType", _has("scale_metric_type"), but_serverless(
        no("Knative's targets have no type"), "Utilization, or an amount per pod")),
    Row("autoScaling.metrics (Resource)", _has_metric("resource"), everywhere("HPA, or Knative's HPA class")),
    Row("autoScaling.metrics (External, PodMetric)", _has_metric("external", "pod"), but_serverless(
        _KNATIVE_SCALES, "KEDA trigger; Value or AverageValue as written, Value for a latency")),
    Row("autoScaling.behavior", _has("behavior"), but_serverless(
        no("Knative has no such policies; use its scale-down-delay and window annotations"), "passed on whole")),
    Row("containerConcurrency", _has("container_concurrency"), but_serverless(
        yes("hard limit in Knative's proxy"), "our predictor's queue; a foreign server is warned about")),
    Row("timeoutSeconds", _has("timeout_seconds"), (
        yes("revision, start of response, predictor"), yes("route, predictor, termination grace"),
        yes("route, predictor, termination grace"), yes("route, predictor, termination grace"),
    ), "timeout"),
    Row("canaryTrafficPercent", _has("canary_traffic_percent"), (
        yes("two revisions by name"), yes("two Deployments and a weighted route"), yes("two sets and a weighted route"),
        refused("one identity per replica: there is no second side"),
    )),
    Row("deploymentStrategy", _has("deployment_strategy"), (
        no("Knative always starts the new revision beside the old one"), yes("as written"),
        no("a LeaderWorkerSet has no such strategy; it surges where there are devices"),
        no("a StatefulSet replaces its pods one by one"),
    )),
    Row("labels", _has("labels"), everywhere("pods")),
    Row("annotations", _has("annotations"), everywhere("pods; those that decide something decide it")),
    Row("minAvailable", _has("min_available"), but_serverless(
        no("Knative's activator covers for a pod that is evicted"), "PodDisruptionBudget")),
    Row("maxUnavailable", _has("max_unavailable"), but_serverless(
        no("Knative's activator covers for a pod that is evicted"), "PodDisruptionBudget")),
    Row("kedaConfig.enableKeda", _has_keda("enabled"), but_serverless(_KNATIVE_SCALES, "KEDA scales")),
    Row("kedaConfig.promServerAddress", _has_keda("server_address"), but_serverless(_KNATIVE_SCALES, "trigger")),
    Row("kedaConfig.customPromQuery", _has_keda("query"), but_serverless(
        _KNATIVE_SCALES, "trigger, guarded; %s is the service")),
    Row("kedaConfig.scalingThreshold", _has_keda("threshold"), but_serverless(_KNATIVE_SCALES, "trigger")),
    Row("kedaConfig.scalingOperator", _has_keda("operator"), but_serverless(
        _KNATIVE_SCALES, "GreaterThanOrEqual as it is, LessThanOrEqual as the inverted ratio")),
    Row("kedaConfig.authenticationRef", _has_keda("authentication"), but_serverless(_KNATIVE_SCALES, "trigger")),
    Row("kedaConfig.authModes", _has_keda("auth_modes"), but_serverless(_KNATIVE_SCALES, "trigger")),
    Row("runner", _has("runner"), everywhere("main container")),
    Row("leader", _has("leader"), (refused("several nodes cannot be one Knative revision"), _ONE_GROUP,
        yes("pod template of the leader"), _ONE_GROUP)),
    Row("worker", _has("worker"), (refused("several nodes cannot be one Knative revision"), _ONE_GROUP,
        yes("pod template and number of the workers"), _ONE_GROUP), "workerSpec"),
    Row("batcher", _has("batcher"), everywhere("our predictor's batching; a foreign server is warned about")),
    Row("logger", _has("logger"), (no("requests are not copied to a logger; use access logs or traces"),) * 4),
    Row("storageUris", _has("storage_uris"), everywhere("a folder each: claims mounted, the rest fetched")),
    Row("storageContainerName", _has("storage_container"), (no("our own fetch is the only storage container"),) * 4),
    Row("model.confidential", _is_confidential, (refused("nothing here decrypts a model"),) * 4),
    Row("acceleratorOverride", _has("accelerator"), everywhere("node selector and devices of the class")),
    Row("resources", _pod("resources"), everywhere("the runner's in OME's documents, the pod's in KServe's")),
    Row("automountServiceAccountToken", _pod("automountServiceAccountToken"), but_serverless(
        yes("true is left out, which means the same to Knative"), _IN_POD)),
    *(_pod_row(name) for name in PASSED_ON),
)  # fmt: skip


def check_fields(subject: Subject, ledger: Ledger) -> None:
    """A numbered warning for every field that is set and has no effect in the component's mode."""
    if subject.mode == "virtual":
        return
    for row in TABLE:
        cell = row.cell(subject.mode)
        if cell.verdict == "no effect" and cell.code == "PL360" and row.is_set(subject):
            ledger.warn("PL360", _place(row, subject), f"has no effect in {subject.mode} mode: {cell.how}")
    _check_service_keda(subject, ledger)
    _check_annotations(subject, ledger)
    _check_foreign(subject, ledger)


def _place(row: Row, subject: Subject) -> str:
    return row.path(subject).partition(" (")[0]


def _check_service_keda(subject: Subject, ledger: Ledger) -> None:
    config = subject.service.keda
    if subject.serverless and subject.serves_model and config is not None and config.enabled is not False:
        ledger.warn("PL360", "spec.kedaConfig", f"has no effect in serverless mode: {_KNATIVE_SCALES.how}")


def _check_annotations(subject: Subject, ledger: Ledger) -> None:
    """Annotations that belong to the other autoscaler."""
    written = {**subject.service.annotations, **subject.component.annotations}
    for key in written:
        if subject.serverless and key in _FOR_DEPLOYMENTS:
            ledger.warn(
                "PL360", subject.annotation_path(key), f"has no effect in serverless mode: {_KNATIVE_SCALES.how}"
            )
        elif not subject.serverless and key.startswith(annotations.KNATIVE_SCALING):
            message = f"has no effect in {subject.mode} mode: Knative does not scale it"
            ledger.warn("PL360", subject.annotation_path(key), message)


_FOR_DEPLOYMENTS: Final = frozenset(
    (*annotations.AUTOSCALER_CLASS, annotations.TRIGGERS, annotations.FORMULA, annotations.WAKE_BY)
)


def _check_foreign(subject: Subject, ledger: Ledger) -> None:
    """What only our predictor can do, asked of somebody else's server."""
    component = subject.component
    if _is_confidential(subject):
        ledger.error("PL364", subject.path("model.confidential"), "nothing here decrypts a model; serve it as it is")
    if subject.choice.ours:
        return
    if component.batcher is not None:
        ledger.warn("PL361", subject.path("batcher"), "the server is not ours and must batch by itself")
    if component.container_concurrency and not subject.serverless:
        message = "the server is not ours, and nothing limits its requests in this mode; use the server's own setting"
        ledger.warn("PL361", subject.path("containerConcurrency"), message)


def markdown() -> str:
    """The table as docs/modes.md shows it."""
    head = ["field", *MODES]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in TABLE:
        name = f"`{row.field}`" + (f", KServe `{row.kserve}`" if row.kserve else "")
        cells = [cell.how if cell.verdict == "honoured" else f"**{cell.verdict}**: {cell.how}" for cell in row.cells]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)
