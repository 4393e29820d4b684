"""One component's workloads: usually one, two while a raw canary runs. Puts the component's decisions together."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pilotlight import names
from pilotlight.plan import annotations, environment
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.model import Current, Scaling, Traffic, Workload
from pilotlight.plan.pods import Template, decide_template
from pilotlight.plan.probes import progress_deadline
from pilotlight.plan.rollout import decide_strategy
from pilotlight.plan.scaling import decide_scaling, replicas_of
from pilotlight.plan.subject import Subject
from pilotlight.plan.traffic import (
    canary_percent,
    check_canary,
    decide_traffic,
    renamed,
    revision_name,
    shared,
    stable_revision,
)
from pilotlight.spec.merge import group_size

Json = Any


def decide_workloads(
    subject: Subject, others: Sequence[tuple[Subject, int]], entry: bool, current: Current, ledger: Ledger
) -> list[Workload]:
    """The component's workload, and beside it the other sides of its canary: `others` are written in the document."""
    if subject.serverless:
        return [_with_traffic(subject, _workload(subject, entry, 0, ledger), current, ledger)]
    if others:
        return _with_written_canaries(subject, others, entry, ledger)
    percent = canary_percent(subject, current)
    known = bool(current.revisions.get(subject.name) or current.traffic.get(subject.name))
    side = shared(subject, percent) and (known or subject.mode == "stateful")
    made = _with_traffic(subject, _workload(subject, entry, 1 if side else 0, ledger), current, ledger)
    stable = stable_revision(subject.name, made.revision, current)
    if not side:
        return [made]
    if subject.mode == "stateful" or stable:
        return _beside_stable(subject, made, stable, current, ledger)
    return [made]


def _with_traffic(subject: Subject, made: Workload, current: Current, ledger: Ledger) -> Workload:
    return replace(made, traffic=decide_traffic(subject, made.revision, current, ledger))


def _workload(subject: Subject, entry: bool, least: int, ledger: Ledger) -> Workload:
    component = subject.component
    timeout_s = environment.decide_timeout(subject, ledger)
    account = component.pod.get("serviceAccountName") or names.service_account(subject.service.name)
    template = decide_template(subject, timeout_s, account, ledger)
    scaling = decide_scaling(subject, least, ledger)
    deadline = progress_deadline(subject, ledger)
    revision = revision_name(subject, template, _revision_extra(subject, scaling, timeout_s, deadline))
    ledger.decide(component.role, "revision", revision, "hash of the rendered pod template")
    return Workload(
        role=component.role, name=subject.name, revision=revision, mode=subject.mode,
        template=_with_revision(subject, template, revision), scaling=scaling,
        strategy=decide_strategy(subject, scaling, ledger),
        replicas=replicas_of(subject, scaling),
        worker_template=template.worker, group_size=1 + _workers(subject),
        port=template.port, port_name=template.port_name, metrics_port=template.metrics_port,
        container_concurrency=component.container_concurrency, timeout_seconds=timeout_s,
        progress_deadline_seconds=deadline, disruption=_disruption(subject, ledger),
        labels={"app.kubernetes.io/component": component.role}, annotations=_object_annotations(subject),
        ours=subject.choice.ours, cluster="ray" if subject.on_ray else "leader-worker-set",
        internal=not entry, pod_security=template.level,
        model_bytes=subject.model_bytes if subject.serves_model else 0,
    )  # fmt: skip


def _workers(subject: Subject) -> int:
    return group_size(subject.choice.runtime, subject.component) if subject.mode == "multi-node" else 0


def _revision_extra(subject: Subject, scaling: Scaling, timeout_s: int, deadline: int) -> Mapping[str, Json]:
    """Knative keeps these in the revision, so they are part of its name."""
    if not subject.serverless:
        return {}
    return {
        "annotations": dict(scaling.annotations),
        "containerConcurrency": subject.component.container_concurrency,
        "timeoutSeconds": timeout_s,
        "progressDeadline": deadline,
    }


def _with_revision(subject: Subject, template: Template, revision: str) -> dict[str, Json]:
    """Metrics of a raw pod carry its revision; in serverless mode Knative tells it."""
    spec = template.template["spec"]
    if subject.serverless:
        return template.template
    main = spec["containers"][0]
    main = {**main, "env": [*main.get("env", ()), environment.revision_variable(revision)]}
    return {**template.template, "spec": {**spec, "containers": [main, *spec["containers"][1:]]}}


def _object_annotations(subject: Subject) -> dict[str, str]:
    written = {**subject.service.annotations, **subject.component.annotations}
    return {key: written[key] for key in annotations.ON_SERVICE_OBJECT if key in written and subject.serverless}


def _disruption(subject: Subject, ledger: Ledger) -> dict[str, Json]:
    """A budget for evictions, as OME defaults it. Both bounds at once are refused by the API."""
    component = subject.component
    if subject.serverless:
        return {}
    if component.min_available is not None and component.max_unavailable is not None:
        ledger.error("PL356", subject.path("minAvailable"), "excludes maxUnavailable; keep one of them")
    if component.min_available is not None:
        return {"minAvailable": component.min_available}
    return {"maxUnavailable": 1 if component.max_unavailable is None else component.max_unavailable}


def _beside_stable(subject: Subject, made: Workload, stable: str, current: Current, ledger: Ledger) -> list[Workload]:
    """The stable side keeps its name and its pods; the new one stands beside it under a canary's name."""
    if not check_canary(subject, stable, current, ledger):
        return [made]
    if made.internal:
        message = "requests are split where they enter; a component behind another one cannot have a canary of its own"
        ledger.error("PL357", subject.path("canaryTrafficPercent"), message)
    name = names.workload(subject.service.name, subject.component.role, "canary")
    workers = made.worker_template
    canary = replace(
        made, name=name, canary=True, traffic=(),
        template=renamed(made.template, subject.name, name),
        worker_template=renamed(workers, subject.name, name) if workers is not None else None,
    )  # fmt: skip
    kept = replace(made, revision=stable, template=current.templates[stable])
    return [kept, canary]


def _with_written_canaries(
    subject: Subject, others: Sequence[tuple[Subject, int]], entry: bool, ledger: Ledger
) -> list[Workload]:
    """KServe's `canary[]`: every side is in the document, and unlike there each scales by itself."""
    made = _workload(subject, entry, 1, ledger)
    shares = [Traffic(made.revision, 100)]
    sides: list[Workload] = []
    for other, percent in others:
        side = _workload(other, entry, 1, ledger.of_side(other.name))
        sides.append(replace(side, canary=True))
        shares = [replace(shares[0], percent=shares[0].percent - percent), *shares[1:], Traffic(side.revision, percent)]
    ledger.decide("predictor", "traffic", ", ".join(f"{s.revision} {s.percent} %" for s in shares), "spec.canary")
    return [replace(made, traffic=tuple(shares)), *sides]
