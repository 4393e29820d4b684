"""Text of the section on annotations in docs/reference/manifests.md: names and values of the code's tables, explained.

The words are in annotations.yaml; an annotation without words, or words without an annotation, fails.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import yaml

from pilotlight.catalogue.runtime_score import ANNOTATION_CLASS
from pilotlight.k8s import autoscaling_annotations as knative
from pilotlight.k8s import names
from pilotlight.plan import document_annotations
from pilotlight.spec.annotation_checks import CHOICES, PREFIX

WORDS: Final = yaml.safe_load(Path(__file__).with_name("annotations.yaml").read_text("utf-8"))
HEAD: Final = "| annotation | on | value | default | meaning |\n|---|---|---|---|---|\n"
TEXT: Final = """# Annotations

This section is generated (`make docs`). *Service* is `metadata.annotations` of the manifest, *component* is
`spec.COMPONENT.annotations`, which wins. Values are text: quote `"true"` and numbers.

## Annotations of Pilotlight

An unknown annotation below `{prefix}` is an error (PL115), so that a misspelt access rule never leaves a service open.

{ours}
## Annotations of KServe, OME, KEDA and Knative

{foreign}
## Annotations of Knative's autoscaler

Below `{knative_prefix}`, on service or component; camel case (`minScale`) is accepted too.
[Autoscaling](../concepts/autoscaling.md#knative) has the rules and defaults.

| annotation | value | meaning |
|---|---|---|
{knative}"""


def page() -> str:
    """Return the section as a page of its own."""
    known = dict.fromkeys((*names.SERVICE_ANNOTATIONS, *names.CATALOGUE_ANNOTATIONS))
    own = [name for name in known if name not in names.RELEASE_ANNOTATIONS]  # those are written by deploy
    assert {name.removeprefix(PREFIX) for name in own} == WORDS["pilotlight"].keys()
    assert WORDS["knative"].keys() == knative.KEYS
    assert {key for name in WORDS["foreign"] for key in _keys(name)} >= document_annotations._CONSUMED
    return TEXT.format(
        prefix=PREFIX,
        knative_prefix=knative.KNATIVE_AUTOSCALING,
        ours=HEAD + "".join(map(_own, own)),
        foreign=HEAD + "".join(_row(_keys(name), *cells) for name, cells in WORDS["foreign"].items()),
        knative="".join(_row([key], _value(key), WORDS["knative"][key]) for key in sorted(knative.KEYS)),
    )


def _own(name: str) -> str:
    value, default, meaning = WORDS["pilotlight"][name.removeprefix(PREFIX)]
    places = [("service", names.SERVICE_ANNOTATIONS), ("component", names.COMPONENT_ANNOTATIONS)]
    places += [("runtime or model of the catalogue", names.CATALOGUE_ANNOTATIONS)]
    where = ", ".join(place for place, known in places if name in known)
    return _row([name], where, value or _choices(CHOICES[name]), default, meaning)


def _keys(constant: str) -> tuple[str, ...]:
    keys = ANNOTATION_CLASS if constant == "ACCELERATOR_CLASS" else getattr(document_annotations, constant)
    return (keys,) if isinstance(keys, str) else keys


def _value(key: str) -> str:
    return _choices(knative.CHOICES[key]) if key in knative.CHOICES else knative.required_value(key, "")


def _choices(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _row(keys: Iterable[str], *cells: str) -> str:
    return f"| {' | '.join([_choices(keys), *cells])} |\n"
