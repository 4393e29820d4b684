"""Immutable parts of Knative Services: templates of existing revisions, and creator annotations. Pure.

Knative's webhook writes defaults into the template of a new revision, under our field manager, and rejects any other
template with the same revision name. So the template of an existing revision is sent as it is live, and shown as it was
sent. The webhook also writes creator annotations, and rejects their removal.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pilotlight.manifests import Manifest
from pilotlight.targets.kubernetes.overlay import is_knative, revision_of

Json = Any
Document = Mapping[str, Json]
CREATOR_ANNOTATIONS: Final = ("serving.knative.dev/creator", "serving.knative.dev/lastModifier")


def with_live_templates(documents: Iterable[Document], live: Iterable[Document]) -> list[Document]:
    """Return documents to apply: templates of existing revisions as they are live."""
    return [_with_creators(_with_template(each, existing), existing) for each, existing in _pairs(documents, live)]


def with_sent_templates(live: Iterable[Document], written: Sequence[Document]) -> list[Document]:
    """Return live documents with the templates of the same revisions as they were written."""
    return [_with_template(each, sent) for each, sent in _pairs(live, written)]


def _pairs(documents: Iterable[Document], others: Iterable[Document]) -> list[tuple[Document, Document | None]]:
    known = {Manifest(each).key: each for each in others if is_knative(each)}
    return [(each, known.get(Manifest(each).key) if is_knative(each) else None) for each in documents]


def _with_template(document: Document, other: Document | None) -> Document:
    if other is None or not revision_of(document) or revision_of(document) != revision_of(other):
        return document
    return {**document, "spec": {**document["spec"], "template": other["spec"]["template"]}}


def _with_creators(document: Document, other: Document | None) -> Document:
    creators = {
        name: text for name, text in _annotations(other or {"metadata": {}}).items() if name in CREATOR_ANNOTATIONS
    }
    if not creators:
        return document
    annotations = {**_annotations(document), **creators}
    return {**document, "metadata": {**document["metadata"], "annotations": annotations}}


def _annotations(document: Document) -> Mapping[str, str]:
    return document["metadata"].get("annotations") or {}
