"""Revisions and their shares: by explicit revision name, from the document and from what runs now.

A serverless canary is two revisions of one Knative Service; a raw one is two workloads side by side. Without knowledge
of what runs (`Current` is empty) the rendered revision gets everything.
"""

from collections.abc import Mapping
from typing import Any

from pilotlight import names
from pilotlight.manifests import canonical
from pilotlight.plan import annotations
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.model import Current, Traffic
from pilotlight.plan.pods import Template
from pilotlight.plan.subject import Subject

Json = Any


def revision_name(subject: Subject, template: Template, extra: Mapping[str, Json]) -> str:
    """`extra` is what Knative keeps in a revision beside the pod: changing it under the same name is refused there."""
    content = [template.template, template.worker, dict(extra)]
    return names.revision(subject.name, canonical(content))


def stable_revision(name: str, rendered: str, current: Current) -> str:
    """The revision that is marked as such, else the one that has most of the traffic now, other than the rendered one;
    empty: there is none."""
    others = [
        share
        for share in current.traffic.get(name, ())
        if share.revision != rendered and (share.percent > 0 or share.tag == names.TAG_PREVIOUS)
    ]
    if others:
        return max(others, key=lambda share: (share.tag == names.TAG_PREVIOUS, share.percent)).revision
    shares = current.traffic.get(name, ())
    known = [revision for revision in current.revisions.get(name, ()) if revision != rendered]
    return "" if shares or not known or rendered in current.revisions.get(name, ())[:1] else known[0]


def decide_traffic(subject: Subject, rendered: str, current: Current, ledger: Ledger) -> tuple[Traffic, ...]:
    """Shares that add up to 100, the rendered revision first."""
    role = subject.component.role
    written = (current.overrides.get(subject.name) or {}).get("traffic")
    if written and subject.serverless:
        ledger.decide(
            role, "traffic", _told(shares := _live(written, rendered)), "kept as set by hand; --reset clears it"
        )
        return shares
    percent = canary_percent(subject, current)
    stable = stable_revision(subject.name, rendered, current)
    if percent is None or not (shared(subject, percent) and stable):
        reason = "no canaryTrafficPercent" if percent is None else "100 %" if percent == 100 else "nothing else runs"
        ledger.decide(role, "traffic", f"{rendered} 100 %", reason)
        return (Traffic(rendered, 100),)
    tagged = subject.annotation(*annotations.TAG_ROUTING) == "true" or not percent or _judged(subject)
    tag = names.TAG_LATEST if tagged else ""
    shares = (Traffic(rendered, percent, tag), Traffic(stable, 100 - percent, names.TAG_PREVIOUS))
    ledger.decide(role, "traffic", _told(shares), f"{role}.canaryTrafficPercent = {percent}")
    return shares


def shared(subject: Subject, percent: int | None) -> bool:
    """Whether the rendered revision has another one beside it. One that is judged has, even when it gets everything."""
    return percent is not None and (percent < 100 or _judged(subject))


def _judged(subject: Subject) -> bool:
    return subject.annotation(names.ANNOTATION_SIDES) == "both"


def canary_percent(subject: Subject, current: Current) -> int | None:
    """The rendered revision's share. Between workloads only two sides can be, so a share set by hand is this one."""
    written = (current.overrides.get(subject.name) or {}).get("traffic") or ()
    by_hand = [int(share["percent"]) for share in written if share["revision"] in ("", "latest")]
    return by_hand[0] if by_hand else subject.component.canary_traffic_percent


def _live(written: list[Mapping[str, Json]], rendered: str) -> tuple[Traffic, ...]:
    """`latest` as a revision means the rendered one."""
    return tuple(
        Traffic(
            rendered if share["revision"] in ("", "latest") else str(share["revision"]),
            int(share["percent"]),
            str(share.get("tag", "")),
        )
        for share in written
    )


def _told(shares: tuple[Traffic, ...]) -> str:
    return ", ".join(f"{share.revision} {share.percent} %" for share in shares)


def renamed(template: Mapping[str, Json], old: str, new: str) -> dict[str, Json]:
    """The same pods under another workload's label: a canary's template, which keeps its revision's name."""
    return {key: _renamed(value, old, new) for key, value in template.items()}


def _renamed(value: Json, old: str, new: str) -> Json:
    if isinstance(value, Mapping):
        return {
            key: new if key == names.LABEL_WORKLOAD and item == old else _renamed(item, old, new)
            for key, item in value.items()
        }
    return [_renamed(item, old, new) for item in value] if isinstance(value, list) else value


def check_canary(subject: Subject, stable: str, current: Current, ledger: Ledger) -> bool:
    """Whether two workloads can stand side by side: the old one's pods must be known to be kept."""
    if subject.mode == "stateful":
        path = subject.path("canaryTrafficPercent")
        ledger.error("PL353", path, "a stateful component has one identity per replica and no second side; use raw")
        return False
    if stable not in current.templates:
        message = (
            f"the pods of {stable} are not known, so that they cannot be kept beside the new ones; read them from the"
        )
        ledger.error("PL354", subject.path("canaryTrafficPercent"), f"{message} target or --current")
        return False
    return True
