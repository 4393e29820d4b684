"""A Knative revision cannot change, and Knative fills in its defaults only once: both ways of reading that. Pure.

Its webhook writes defaults into a template when the revision's name is new, in our name, and refuses any other text
under a name that it knows. So a template that is there already is sent as it is there, and shown as it was sent. The
same webhook notes who made the object, again in our name, and refuses to have that taken away.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pilotlight.manifests import Manifest
from pilotlight.targets.kubernetes.overlay import is_knative, revision_of

Json = Any
Document = Mapping[str, Json]
AUTHORS: Final = ("serving.knative.dev/creator", "serving.knative.dev/lastModifier")


def sendable(documents: Iterable[Document], there: Iterable[Document]) -> list[Document]:
    """What can be applied: templates of revisions that exist as the cluster has them."""
    return [_with_author(_with_template(each, found), found) for each, found in _pairs(documents, there)]


def as_sent(found: Iterable[Document], written: Sequence[Document]) -> list[Document]:
    """What was applied, from what is found: templates of the same revision as they were written."""
    return [_with_template(each, sent) for each, sent in _pairs(found, written)]


def _pairs(documents: Iterable[Document], others: Iterable[Document]) -> list[tuple[Document, Document | None]]:
    known = {Manifest(each).key: each for each in others if is_knative(each)}
    return [(each, known.get(Manifest(each).key) if is_knative(each) else None) for each in documents]


def _with_template(document: Document, other: Document | None) -> Document:
    if other is None or not revision_of(document) or revision_of(document) != revision_of(other):
        return document
    return {**document, "spec": {**document["spec"], "template": other["spec"]["template"]}}


def _with_author(document: Document, other: Document | None) -> Document:
    noted = {name: text for name, text in _annotations(other or {"metadata": {}}).items() if name in AUTHORS}
    if not noted:
        return document
    annotations = {**_annotations(document), **noted}
    return {**document, "metadata": {**document["metadata"], "annotations": annotations}}


def _annotations(document: Document) -> Mapping[str, str]:
    return document["metadata"].get("annotations") or {}
