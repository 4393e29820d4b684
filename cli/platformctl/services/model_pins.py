"""Pins of model URIs for verbs that deploy or compare, with the progress on the terminal."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from platformctl import output
from platformctl.services.model_document import redeploy_command

if TYPE_CHECKING:
    from pilotlight.k8s.manifest import ObjectKey
    from pilotlight.plan.types import Capabilities
    from pilotlight.release.model_pins import PinMode, Progress
    from pilotlight.release.plan_and_render import Documents

SHOWN_BYTES: Final = 64 << 20  # larger models show their progress


def resolve(documents: "Documents", capabilities: "Capabilities", mode: "PinMode", *, local: bool) -> "Documents":
    """Return the documents with pins for all model URIs that have none; a note names those that cannot be pinned.

    `local`: they are for this machine; on a cluster a path is one of the image.
    """
    from pilotlight.release.model_pins import resolve_pins
    from pilotlight.targets.local.home_directory import home
    from pilotlight.targets.local.local_models import LocalModels

    with _progress() as progress:
        return resolve_pins(documents, capabilities, LocalModels(home()) if local else None, mode, progress)


def check_stored(documents: "Documents", mode: "PinMode", namespace: str) -> None:
    """Take lost snapshots of stored documents again from unchanged originals; note originals that have changed.

    `namespace`: the one of commands without --namespace.
    """
    from pilotlight.k8s.model_pins import decode, is_local, local_path
    from pilotlight.k8s.names import ANNOTATION_PINS
    from pilotlight.targets.local.home_directory import home
    from pilotlight.targets.local.local_models import LocalModels

    models = LocalModels(home())
    with _progress() as progress:
        for service in documents.services:
            for uri, pin in decode(service.annotations.get(ANNOTATION_PINS, "")).items():
                path = local_path(uri)
                if not is_local(uri) or not os.path.exists(path):
                    continue
                if models.pin(path, "compare", progress).digest == pin.digest:
                    models.pin(path, mode, progress)
                else:
                    command = redeploy_command(service, path, namespace)
                    output.note(f"{uri} has changed since it was deployed, and the old content is served")
                    output.note(f"  deploy the new: {command}")


@contextmanager
def _progress() -> "Iterator[Progress]":
    ticker = output.ProgressLog()

    def show(step: str, text: str, done: int = 0, total: int = 0) -> None:
        if step == "Warning":
            output.note(f"note: {text}")
        elif not total:
            ticker.log(step, text)
        elif total >= SHOWN_BYTES:
            ticker.log(step, text, output.bar(done, total))

    try:
        yield show
    finally:
        ticker.close()


def note_changed_models(changes: "Mapping[ObjectKey, Mapping[str, Sequence[str]]]") -> None:
    for uri, files in (item for models in changes.values() for item in models.items()):
        output.note(f"model {uri}: {', '.join(files)}")
