"""Revisions and their traffic split, from the document and the current state.

A serverless canary is two revisions of one Knative Service; a raw one is two workloads. Without a current state the
rendered revision gets all traffic.
"""

from collections.abc import Mapping
from typing import Any

from pilotlight.k8s import names
from pilotlight.k8s.manifest import canonical_json
from pilotlight.plan import document_annotations
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.pods import PodTemplate
from pilotlight.plan.types import Current, DecisionLog, Traffic

Json = Any


def revision_name(context: PlanContext, template: PodTemplate, extra: Mapping[str, Json]) -> str:
    """Return the name of a revision. `extra`: immutable fields of a Knative revision other than the pod."""
    return names.revision(context.name, canonical_json([template.template, template.worker, dict(extra)]))


def stable_revision(name: str, rendered: str, current: Current) -> str:
    """Return the stable revision: the one tagged `prev`, else the one with the most traffic, never the rendered one.

    Empty if there is none.
    """
    others = [
        share
        for share in current.traffic.get(name, ())
        if share.revision != rendered and (share.percent > 0 or share.tag == names.TAG_PREVIOUS)
    ]
    if others:
        return max(others, key=lambda share: (share.tag == names.TAG_PREVIOUS, share.percent)).revision
    # No other revision has traffic. Without traffic data the newest other revision is stable, unless the rendered one
    # is the newest.
    shares = current.traffic.get(name, ())
    known = [revision for revision in current.revisions.get(name, ()) if revision != rendered]
    return "" if shares or not known or rendered in current.revisions.get(name, ())[:1] else known[0]


def decide_traffic(context: PlanContext, rendered: str, current: Current, log: DecisionLog) -> tuple[Traffic, ...]:
    """Return shares that add up to 100, the rendered revision first."""
    role = context.component.role
    override = (current.overrides.get(context.name) or {}).get("traffic")
    if override and context.serverless:
        shares = tuple(
            Traffic(rendered if revision in ("", "latest") else str(revision), int(percent), str(tag))
            for revision, percent, tag in ((one["revision"], one["percent"], one.get("tag", "")) for one in override)
        )
        log.decide(role, "traffic", _describe(shares), "manual override; --reset removes it")
        return shares
    percent = canary_percent(context, current)
    stable = stable_revision(context.name, rendered, current)
    if percent is None or not (is_split(context, percent) and stable):
        reason = "no canaryTrafficPercent" if percent is None else "100 %" if percent == 100 else "nothing else runs"
        log.decide(role, "traffic", f"{rendered} 100 %", reason)
        return (Traffic(rendered, 100),)
    tagged = context.annotation(*document_annotations.TAG_ROUTING) == "true" or not percent or _in_analysis(context)
    tag = names.TAG_LATEST if tagged else ""
    shares = (Traffic(rendered, percent, tag), Traffic(stable, 100 - percent, names.TAG_PREVIOUS))
    log.decide(role, "traffic", _describe(shares), f"{role}.canaryTrafficPercent = {percent}")
    return shares


def is_split(context: PlanContext, percent: int | None) -> bool:
    """Return whether traffic is split. During a canary analysis it is, even at 100 percent."""
    return percent is not None and (percent < 100 or _in_analysis(context))


def _in_analysis(context: PlanContext) -> bool:
    return context.annotation(names.ANNOTATION_SIDES) == "both"


def canary_percent(context: PlanContext, current: Current) -> int | None:
    """Return the rendered revision's percent: the live override of `latest`, else canaryTrafficPercent."""
    override = (current.overrides.get(context.name) or {}).get("traffic") or ()
    overrides = [int(share["percent"]) for share in override if share["revision"] in ("", "latest")]
    return overrides[0] if overrides else context.component.canary_traffic_percent


def _describe(shares: tuple[Traffic, ...]) -> str:
    return ", ".join(f"{share.revision} {share.percent} %" for share in shares)


def relabelled(template: Mapping[str, Json], old: str, new: str) -> dict[str, Json]:
    """Replace the workload label of a template, for a canary's pods; the revision's name stays."""
    return {key: _relabelled(value, old, new) for key, value in template.items()}


def _relabelled(value: Json, old: str, new: str) -> Json:
    if isinstance(value, Mapping):
        return {
            key: new if key == names.LABEL_WORKLOAD and item == old else _relabelled(item, old, new)
            for key, item in value.items()
        }
    return [_relabelled(item, old, new) for item in value] if isinstance(value, list) else value


def check_canary(context: PlanContext, stable: str, current: Current, log: DecisionLog) -> bool:
    """Return whether a second workload is possible: the stable one's template must be known."""
    if context.mode == "stateful":
        path = context.path("canaryTrafficPercent")
        log.error("PL353", path, "a stateful component cannot have two revisions; use raw")
        return False
    if stable not in current.templates:
        message = f"the pods of {stable} are unknown, so they cannot be kept next to the new ones"
        log.error("PL354", context.path("canaryTrafficPercent"), f"{message}; read them from the target or --current")
        return False
    return True
