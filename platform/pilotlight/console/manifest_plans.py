"""Manifests from the browser, planned as `platformctl validate`, `diff` and `deploy` plan a file. Blocking.

Two things differ from a file. A manifest from the browser has no folder, so a relative path is an error. And it may
name models of this machine, but reads no other file.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import unified_diff
from typing import Any, Final

from pilotlight.contract import LOCAL_CAPABILITIES
from pilotlight.errors import NotFound, UsageError
from pilotlight.k8s import manifest as k8s_manifest
from pilotlight.k8s.model_pins import is_local, local_path
from pilotlight.plan.types import Capabilities
from pilotlight.release import apply, history
from pilotlight.release.model_pins import Progress, changed_models, resolve_pins, without_pins
from pilotlight.release.plan_and_render import Documents, Sources, plan_documents, read
from pilotlight.spec.problems import InvalidDocument, Problem, Problems, SourceLocation, problem_rows
from pilotlight.spec.yaml_nodes import Node, parse
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.installed_engines import installed_engines
from pilotlight.targets.local.local_models import LocalModels
from pilotlight.targets.target import Key, Release, Target

FILE: Final = "manifest"
NO_DOCUMENT, NO_MODEL = "PL112", "PL341"
SHOWN_STEPS: Final = 20  # of the progress of reading one model

Log = Callable[[str, str], None]  # step, text
Pin = Callable[[Documents, Capabilities], Documents]


@dataclass(frozen=True, slots=True)
class Draft:
    """One service of a manifest, planned."""

    request: apply.ReleaseRequest
    prepared: apply.PreparedRelease
    stored: Release | None  # its newest release; None: a new service

    @property
    def summary(self) -> dict[str, Any]:
        plan, prepared = self.prepared.plan, self.prepared
        counts = {"objects": len(prepared.manifests), "exists": bool(prepared.release.expected)}
        return {"namespace": plan.namespace, "name": plan.name, "mode": plan.mode, **counts}


def stored_manifest(target: Target, key: Key) -> dict[str, Any]:
    """Return the manifest as it was deployed, without what a deploy adds, and the replica bounds of its plan."""
    release = history.releases(target, key)[0]
    documents, capabilities = apply.read_release(release)
    scaling = plan_documents(documents, capabilities).plans[0].workloads[0].scaling
    bounds = {"minReplicas": scaling.min_replicas, "maxReplicas": scaling.max_replicas}
    return {"text": _text(documents), "generation": release.generation, "bounds": bounds}


def _text(documents: Documents) -> str:
    return apply.document_text(without_pins(documents).services[0], Capabilities())


def validate(text: str, service: str, target: Target, home: Home | None, *, compares: bool) -> dict[str, Any]:
    """Return problems and services; `compares`: also what a deploy would change, for which models are read."""
    models = LocalModels(home) if home is not None else None

    def pin(documents: Documents, capabilities: Capabilities) -> Documents:
        return resolve_pins(documents, capabilities, models, "compare", lambda *_: None) if compares else documents

    try:
        drafts, warnings = plan_drafts(text, service, target, pin)
    except InvalidDocument as error:
        return {"valid": False, "problems": problem_rows(error.problems), "services": []}
    planned = {"valid": True, "problems": problem_rows(warnings), "services": [each.summary for each in drafts]}
    return {**planned, **changes(drafts)} if compares else planned


def deploy(text: str, service: str, target: Target, home: Home | None, log: Log) -> list[dict[str, Any]]:
    """Plan, pin and apply all services; of several, the target checks each before the first is applied."""
    models = LocalModels(home) if home is not None else None

    def pin(documents: Documents, capabilities: Capabilities) -> Documents:
        return resolve_pins(documents, capabilities, models, "snapshot", _in_steps(log))

    drafts, warnings = plan_drafts(text, service, target, pin)
    for warning in warnings:
        log("Warning", str(warning))
    for draft in drafts:
        log("Validated", "{namespace}/{name}: {mode}, {objects} objects".format(**draft.summary))
        if len(drafts) > 1:
            apply.apply(draft.request, [draft.prepared], target, dry_run=True)
    applied = []
    for draft in drafts:
        ((one, status),) = apply.apply(draft.request, [draft.prepared], target)
        change = "unchanged" if status.generation == one.release.expected else f"generation {status.generation}"
        log("Applied", f"{status.namespace}/{status.name}: {change}")
        applied.append({"namespace": status.namespace, "name": status.name, "generation": status.generation})
    return applied


def _in_steps(log: Log) -> Progress:
    """Return a callback that logs the bytes of a model as SHOWN_STEPS percentages."""
    steps: dict[str, int] = {}

    def progress(step: str, text: str, done: int = 0, total: int = 0) -> None:
        reached = SHOWN_STEPS * done // total if total else 0
        if not total:
            log(step, text)
        elif reached > steps.get(text, 0):
            steps[text] = reached
            log(step, f"{text}: {100 * done // total} %")

    return progress


def plan_drafts(text: str, edited: str, target: Target, pin: Pin) -> tuple[list[Draft], list[Problem]]:
    """Plan every service of the manifest and return warnings too. Raise InvalidDocument with all problems."""
    documents = read_manifest(text, edited, target)
    drafts: list[Draft] = []
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for service in documents.services:
        try:
            stored = _newest_release(target, (service.namespace, service.name))
            capabilities = _capabilities(target, stored)
            request = apply.ReleaseRequest(pin(replace(documents, services=(service,)), capabilities), capabilities)
            (prepared,), found = apply.prepare(request, target)
            drafts.append(Draft(request, prepared, stored))
            warnings += found
        except InvalidDocument as error:
            problems += error.problems
    if problems:
        raise InvalidDocument(list(dict.fromkeys(problems)))
    return drafts, list(dict.fromkeys(warnings))


def read_manifest(text: str, edited: str, target: Target) -> Documents:
    """Read the text. Runtimes, models and Secrets that were deployed with the `edited` service are read with it."""
    problems = Problems()
    nodes = parse(text, FILE, problems)
    if problems.errors:
        raise InvalidDocument(problems.items)
    given = {_identity(node) for node in nodes}
    others = [node for node in _catalogue(edited, target) if _identity(node) not in given]
    catalogue = None if target.embedded else lambda namespaces: target.catalogue(namespaces)[0]
    documents = without_pins(read(Sources((), objects=[*nodes, *others], target_catalogue=catalogue)))
    if not documents.services:
        problems.error(NO_DOCUMENT, SourceLocation(FILE), "", "holds no InferenceService")
    for service in documents.services:
        for path, value in apply.model_uris(service):
            if value.startswith(apply.RELATIVE):
                message = f"{value} is relative; write an absolute path or a URI"
                problems.error(NO_MODEL, service.location(path), path, message)
            elif target.embedded and is_local(value) and not os.path.exists(local_path(value)):
                problems.error(NO_MODEL, service.location(path), path, f"there is no {local_path(value)}")
    if problems.errors:
        raise InvalidDocument(problems.items)
    keys = [f"{service.namespace}/{service.name}" for service in documents.services]
    if edited and keys != [edited]:
        raise UsageError(f"the manifest is of {', '.join(keys)}, must be of {edited}", "deploy it as a new service")
    return documents


def _catalogue(edited: str, target: Target) -> list[Node]:
    namespace, _, name = edited.partition("/")
    stored = _newest_release(target, (namespace, name)) if name else None
    return [node for text in (stored.catalogue if stored else ()) for node in parse(text, "<release>", Problems())]


def _identity(node: Node) -> tuple[str, str]:
    metadata = node.get("metadata")
    return node.text("kind"), metadata.text("name") if metadata is not None else ""


def _newest_release(target: Target, key: Key) -> Release | None:
    try:
        return next(iter(target.releases(key)), None)
    except NotFound:
        return None


def _capabilities(target: Target, stored: Release | None) -> Capabilities:
    """Return the capabilities of this API's target; for a service on docker or slurm, those of its release."""
    if not target.embedded:
        return replace(Capabilities(), **target.capabilities())
    local = replace(Capabilities(), **LOCAL_CAPABILITIES, engines=installed_engines(os.environ))
    released = apply.read_release(stored)[1] if stored else local
    return local if released.target in ("", local.target) else released


def changes(drafts: list[Draft]) -> dict[str, Any]:
    """Return the changed lines of the manifests, objects and files of models. Secrets are never read back."""
    lines: list[str] = []
    objects: list[dict[str, Any]] = []
    models: list[str] = []
    for draft in drafts:
        sides = (draft.prepared.live_manifests, draft.prepared.manifests)
        live, wanted = ([each for each in side if each.kind != "Secret"] for side in sides)
        before = _text(apply.read_release(draft.stored)[0]) if draft.stored else ""
        pair = before.splitlines(), _text(draft.request.documents).splitlines()
        name = "/".join(draft.prepared.key)
        lines += unified_diff(*pair, f"{name} (deployed)", f"{name} (new)", lineterm="")
        objects += [
            {"change": change.kind, "kind": change.key[1], "name": change.key[3], "diff": list(change.lines)}
            for change in k8s_manifest.diff(live, wanted)
        ]
        changed = changed_models(live, wanted).values()
        models += [f"{uri}: {', '.join(files)}" for by_uri in changed for uri, files in by_uri.items()]
    return {"manifest": lines, "objects": objects, "models": models}
