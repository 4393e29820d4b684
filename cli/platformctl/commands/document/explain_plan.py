"""`platformctl explain`: decisions about a service with reasons, candidate runtimes, or what an error code means."""

import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pilotlight.catalogue.runtime_selection import select_runtime
from pilotlight.errors import NotFound, UsageError
from pilotlight.plan.component_runtime import runtime_host
from platformctl import options, output, targets
from platformctl.services.model_pins import resolve

if TYPE_CHECKING:
    from pilotlight.plan.types import Capabilities, Plan
    from pilotlight.spec.service import Catalogue, Service


CODE: Final = re.compile(r"PL\d+", re.IGNORECASE)
PAGES: Final = {"PL4": "docs/reference/lint.md"}  # of codes by their beginning; else docs/reference/errors.md


@click.command()
@options.explain_options
@click.option("--runtime", is_flag=True, help="List every candidate runtime, and why it was selected or rejected.")
@output.formats("table", "json", "yaml")
def explain(document_options: options.DocumentOptions, runtime: bool) -> None:
    """Explain what was decided about a service, and why; or what an error code means.

    \b
    Example: platformctl explain -f service.yaml
             platformctl explain PL342
    """
    if not document_options.files:
        _explain_codes(document_options.names)
        return
    if runtime:
        read, capabilities = document_options.read_and_warn()
        for sentence in read.catalogue.shadowed:
            output.note(sentence)
        selected = document_options.select(read.services)
        services = [candidates(service, read.catalogue, capabilities) for service in selected]
        lines = [line for service in services for line in candidate_lines(service)]
    else:
        local = document_options.target_name in targets.EMBEDDED
        pin = partial(resolve, mode="compare", local=local) if document_options.target != targets.CLUSTER else None
        services = [decisions(plan) for plan in document_options.plan(pin=pin).plans]
        lines = [line for service in services for line in decision_lines(service)]
    output.data({"services": services}, lines[:-1])


def _explain_codes(words: Sequence[str]) -> None:
    if not words:
        raise UsageError("neither -f FILE nor an error code is given", "platformctl explain -f FILE, or explain PL342")
    for word in words:
        if not CODE.fullmatch(word):
            raise _no_code(word)
    entries = [code_entry(word.upper()) for word in words]
    lines = [line for entry in entries for line in code_lines(entry)]
    output.data({"codes": entries}, lines[:-1])


def _no_code(word: str) -> UsageError:
    if Path(word).exists():
        return UsageError(f"{word} is a file", f"platformctl explain -f {shlex.quote(word)}")
    if re.fullmatch(r"[A-Z]+-?\d+", word):
        return UsageError(f"{word} is not an error code: those begin with PL", "docs/reference/errors.md lists them")
    hint = f"if it is a service: platformctl status {word}; the decisions about a manifest: platformctl explain -f FILE"
    return UsageError(f"{word} is not an error code", hint)


def code_entry(code: str) -> dict[str, str]:
    """Return meaning, fix and page of a code. Raise NotFound with similar codes."""
    from pilotlight.lint import RULES
    from pilotlight.spec.problems import code_texts

    texts = {name: (text.what, text.fix) for name, text in code_texts().items()}
    texts |= {rule.id: (f"{rule.text.title} ({rule.text.severity}). {rule.text.why}", rule.text.fix) for rule in RULES}
    if code not in texts:
        alike = (each for each in texts if each[:3] == code[:3])
        near = sorted(alike, key=lambda each: abs(int(each[2:]) - int(code[2:])))[:3]
        hint = f"similar codes: {', '.join(near)}" if near else "docs/reference/errors.md lists them"
        raise NotFound(f"there is no error code {code}", hint)
    what, fix = texts[code]
    return {"code": code, "what": what, "fix": fix, "page": PAGES.get(code[:3], "docs/reference/errors.md")}


def code_lines(entry: dict[str, str]) -> list[str]:
    first, *rest = entry["fix"].splitlines()
    fix = [f"  fix: {first}"] if not rest else ["  fix:", *(f"    {line}" for line in (first, *rest))]
    return [f"{entry['code']}: {entry['what']}", *fix, f"  see {entry['page']}", ""]


def decisions(plan: "Plan") -> dict[str, Any]:
    return {
        "name": plan.name, "namespace": plan.namespace, "mode": plan.mode,
        "decisions": [{"topic": each.topic, "value": each.value, "reason": each.reason} for each in plan.decisions],
        "needs": [{"kind": need.kind, "name": need.name, "reason": need.reason} for need in plan.requirements],
    }  # fmt: skip


def decision_lines(service: dict[str, Any]) -> list[str]:
    """Return a heading, tables of decisions and requirements, and an empty line."""
    distinct = dict.fromkeys((each["topic"], each["value"], each["reason"]) for each in service["decisions"])
    needs = [(need["kind"], need["name"], need["reason"]) for need in service["needs"]]
    tables = [("decision", "value", "because"), *distinct], [("needs", "name", "because"), *needs]
    heading = f"{service['namespace']}/{service['name']}: {service['mode']}"
    return [heading, *(line for table in tables if len(table) > 1 for line in output.columns(table)), ""]


def candidates(service: "Service", catalogue: "Catalogue", capabilities: "Capabilities") -> dict[str, Any]:
    """Return the runtime selection, also for services that cannot be planned."""
    component = service.components.get("engine") or service.components.get("predictor")
    host = runtime_host(capabilities, service)
    selection = select_runtime(service, component, catalogue, host) if component else None
    rows = [
        {
            "runtime": each.runtime.name, "taken": bool(selection and selection.runtime is each.runtime),
            "fits": each.accepted, "score": each.score, "reason": each.reason, "origin": each.runtime.origin,
        }
        for each in (selection.candidates if selection else ())
    ]  # fmt: skip
    taken = selection.runtime.name if selection and selection.runtime else ""
    why = (selection.reason or "; ".join(each.message for each in selection.problems)) if selection else ""
    return {
        "name": service.name, "namespace": service.namespace, "runtime": taken,
        "reason": why or "no component serves a model", "candidates": rows,
    }  # fmt: skip


def candidate_lines(service: dict[str, Any]) -> list[str]:
    verdicts = {(True, True): "taken", (False, True): "fits", (False, False): "no", (True, False): "taken"}
    rows = [
        (each["runtime"], verdicts[each["taken"], each["fits"]], str(each["score"]), each["origin"], each["reason"])
        for each in service["candidates"]
    ]
    heading = f"{service['namespace']}/{service['name']}: {service['runtime'] or 'no runtime'} ({service['reason']})"
    table = output.columns([("runtime", "verdict", "score", "from", "because"), *rows]) if rows else []
    return [heading, *table, ""]
