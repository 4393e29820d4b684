"""`canary:` in the spec of a service: what its next revision must prove, as a map. A list there is KServe's own.

spec:
  canary: {steps: "5,25,50,100", check: [p99_ms<300, error_rate<1%], compare: baseline}

`fold` makes of it the annotation that later stages and targets know (canary/block.py reads it), so that a document of
ours is valid for whoever else reads its kind. `POLICY` describes the keys to editors.
"""

import json
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.names import ANNOTATION_CANARY
from pilotlight.spec.nodes import Node, parse
from pilotlight.spec.problems import Place, Problems
from pilotlight.spec.types import Anything, Field, Number, OneOf, Record, Truth, Whole

PATH: Final = "spec.canary"
POLICY: Final = Record(
    "canary",
    {
        "steps": Field(Anything(), "Shares in percent, rising, the last 100: 5,25,50,100."),
        "bake": Field(Anything(), "How long each share is held at least: 2m."),
        "interval": Field(Anything(), "Between two measurements: 15s."),
        "check": Field(Anything(), "A figure with its bound, or a list of them: p99_ms<300."),
        "promql": Field(Anything(), "Queries of your own, by name."),
        "max": Field(Anything(), "Upper bounds of those queries, by name."),
        "min": Field(Anything(), "Lower bounds of those queries, by name."),
        "compare": Field(OneOf(("baseline", "")), "baseline: held against the revision that serves."),
        "ratio": Field(Number(), "How many times worse than the baseline is worse."),
        "min-requests": Field(Whole(0), "Of each side, before a measurement can succeed."),
        "failure-limit": Field(Whole(1), "Failed measurements that end it."),
        "on-no-data": Field(OneOf(("probe", "pause", "fail", "pass")), "What too few requests mean."),
        "example": Field(Anything(), "The body that probes send."),
        "on-inconclusive": Field(OneOf(("pause", "fail", "pass")), "What a measurement means that stays unclear."),
        "inconclusive-limit": Field(Whole(1), "Unclear measurements in a row until that holds."),
        "deadline": Field(Anything(), "When it must be through, without pauses: 1h."),
        "auto-promote": Field(Truth(), "false: a person promotes it after the last step."),
        "manual": Field(Truth(), "true: the same as auto-promote: false."),
        "keep-stable": Field(Anything(), "How long the old revision keeps its replicas after promotion: 30s."),
        "dry-run-checks": Field(Truth(), "true: measured and shown, but no check stops it."),
    },
    "What a new revision must prove before it gets all requests.",
)


def fold(document: Node, problems: Problems) -> None:
    """In place. A block that cannot be read is told (PL116) and dropped."""
    spec = document.get("spec")
    block = spec.get("canary") if spec else None
    if spec is None or block is None or not isinstance(block.value, dict):
        return
    assert isinstance(spec.value, dict)
    del spec.value["canary"]
    if not _readable(block, problems):
        return
    annotations = _made(_made(document, "metadata", block.key), "annotations", block.key)
    if not isinstance(annotations.value, dict):
        return  # which is told when it is read
    if ANNOTATION_CANARY in annotations.value:
        told = f"excludes the annotation {ANNOTATION_CANARY}, which says the same; keep one of them"
        problems.error("PL111", block.key, PATH, told)
        return
    annotations.value[ANNOTATION_CANARY] = Node(block.place, json.dumps(block.plain()), block.key)


def unfold(document: Node) -> None:
    """In place, before somebody changes `spec.canary` of a document that is kept: it has the annotation."""
    spec, metadata = document.get("spec"), document.get("metadata")
    annotations = metadata.get("annotations") if metadata else None
    written = annotations.get(ANNOTATION_CANARY) if annotations else None
    if spec is None or annotations is None or written is None or not isinstance(written.value, str):
        return
    found = parse(written.value, written.place.file, silent := Problems())
    readable = not silent.errors and len(found) == 1 and isinstance(found[0].value, dict)
    if not readable or not isinstance(spec.value, dict) or "canary" in spec.value:
        return  # which is told when it is read
    assert isinstance(annotations.value, dict)
    del annotations.value[ANNOTATION_CANARY]
    found[0].key = written.key
    spec.value["canary"] = found[0]


def _readable(block: Node, problems: Problems) -> bool:
    from pilotlight.canary.block import policy_of

    try:
        policy_of(block.plain())
    except UsageError as wrong:
        problems.error("PL116", _place(block, str(wrong)), PATH, str(wrong))
        return False
    return True


def _place(block: Node, told: str) -> Place:
    """Of the key that the sentence begins with, else of the whole."""
    named = block.get(told.partition(" ")[0])
    return named.key if named else block.key


def _made(node: Node, name: str, place: Place) -> Node:
    """The map of that name; made where there is none."""
    if not isinstance(node.value, dict):
        return node
    if name not in node.value or node.value[name].value is None:
        node.value[name] = Node(place, {}, place)
    return node.value[name]
