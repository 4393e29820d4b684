"""Rules for the traffic of a Knative Service: percentages, tags, revision names."""

import re
from typing import Final

from pilotlight.lint.objects import name
from pilotlight.lint.parts import Part
from pilotlight.lint.rule import KNATIVE, Hits, LintContext, rule

LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LONGEST_LABEL: Final = 63


def traffic(service: Part) -> list[Part]:
    return list(service.get("spec", "traffic").each())


def revision_name(service: Part) -> Part:
    return service.get("spec", "template", "metadata", "name")


@rule(
    "PL473", "error", "traffic does not add up to 100", KNATIVE,
    why="""Knative's webhook refuses a route whose percentages do not add up to 100; an entry without percent counts
        as 0.""",
    fix="""
        traffic:
        - {revisionName: m-00001, percent: 90}
        - {revisionName: m-00002, percent: 10, tag: canary}""",
)  # fmt: skip
def percentages(service: Part, _: LintContext) -> Hits:
    entries = traffic(service)
    total = sum(entry.get("percent").integer(0) for entry in entries)
    if entries and total != 100:
        yield service.get("spec", "traffic"), f"the percentages add up to {total}, must be 100"
    for entry in entries:
        if not 0 <= entry.get("percent").integer(0) <= 100:
            yield entry.get("percent"), f"percent = {entry.get('percent').text()}, must be 0 to 100"


@rule(
    "PL474", "warning", "traffic by name to revisions without names", KNATIVE,
    why="""Without template.metadata.name Knative invents the next revision's name (m-00002), which no file can know.
        Every change of the template then makes a revision that gets no traffic until somebody edits the names; two
        environments drift apart.""",
    fix="""
        spec:
          template: {metadata: {name: m-v2}}
          traffic: [{revisionName: m-v2, percent: 100}]""",
)  # fmt: skip
def unnamed_revision(service: Part, _: LintContext) -> Hits:
    latest = any(entry.get("latestRevision").boolean(default=False) for entry in traffic(service))
    for entry in traffic(service):
        if entry.get("revisionName") and not latest and not revision_name(service):
            message = (
                f"{entry.get('revisionName').text()} is pinned, but the template has no metadata.name: what this file"
                " deploys gets no traffic; name the revision"
            )
            yield entry.get("revisionName"), message


@rule(
    "PL475", "error", "one tag twice", KNATIVE,
    why="""A tag is a host name of its own (TAG-SERVICE.…) and can lead to one revision only.""",
    fix="""
        traffic: [{tag: stable, …}, {tag: canary, …}]""",
)  # fmt: skip
def same_tag(service: Part, _: LintContext) -> Hits:
    seen: set[str] = set()
    for entry in traffic(service):
        tag = entry.get("tag").text()
        if tag and tag in seen:
            yield entry.get("tag"), f"the tag {tag} is given to an earlier entry; tags must be unique"
        seen.add(tag)


@rule(
    "PL476", "error", "tag or name that makes no host name", KNATIVE,
    why="""TAG-SERVICE becomes one label of a host name and the name of a Kubernetes Service: lower-case letters, digits
        and hyphens, at most 63 characters together. The webhook does not check the sum; the route then never becomes
        ready.""",
    fix="""
        tag: canary""",
)  # fmt: skip
def tag_label(service: Part, _: LintContext) -> Hits:
    for entry in traffic(service):
        tag = entry.get("tag")
        host = f"{tag.text()}-{name(service)}"
        if tag.text() and not LABEL.fullmatch(tag.text()):
            yield tag, f"tag = {tag.text()}, must be lower-case letters, digits and hyphens"
        elif tag.text() and len(host) > LONGEST_LABEL:
            yield tag, f"{host} has {len(host)} characters, at most {LONGEST_LABEL} fit a host name; shorten the tag"


@rule(
    "PL477", "error", "revision name without the service's prefix", KNATIVE,
    why="""A revision that is named by hand must be called SERVICE-something, a DNS label of at most 63 characters, or
        Knative's webhook refuses the Service.""",
    fix="""
        metadata: {name: m}
        spec: {template: {metadata: {name: m-v2}}}""",
)  # fmt: skip
def revision_prefix(service: Part, _: LintContext) -> Hits:
    revision, prefix = revision_name(service), f"{name(service)}-"
    if revision and not revision.text().startswith(prefix):
        yield revision, f"template.metadata.name = {revision.text()}, must start with {prefix}"
    elif revision and (len(revision.text()) > LONGEST_LABEL or not LABEL.fullmatch(revision.text())):
        message = (
            f"template.metadata.name = {revision.text()}, must be a DNS label of at most {LONGEST_LABEL} characters"
        )
        yield revision, message


@rule(
    "PL478", "error", "traffic entry that names both or the wrong target", KNATIVE,
    why="""An entry of a Service leads either to a named revision or to the latest one; configurationName belongs to a
        Route of its own. The webhook refuses contradictions.""",
    fix="""
        traffic: [{latestRevision: true, percent: 100}]""",
)  # fmt: skip
def contradiction(service: Part, _: LintContext) -> Hits:
    for entry in traffic(service):
        pinned, latest = entry.get("revisionName"), entry.get("latestRevision")
        if latest and bool(pinned.text()) == latest.boolean(default=False):
            message = f"latestRevision = {latest.text()} contradicts revisionName {pinned.text() or 'none'}; keep one"
            yield latest, message
        if entry.get("configurationName"):
            yield entry.get("configurationName"), "configurationName is refused in a Service; delete it"
