"""Pins: which content of its model URIs a revision was made from, as JSON in an annotation of its pod template.

Resolved when a service is deployed. New content under the same URI is thereby a new revision; without a pin a revision
serves whatever the URI holds when it starts.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import msgspec

from pilotlight.errors import UsageError
from pilotlight.k8s.names import ANNOTATION_PINS

LOCAL_SCHEMES: Final = ("", "file", "local")
# Stores that can report what they hold without a download.
REMOTE_SCHEMES: Final = ("s3", "gs", "gcs", "az", "azure", "as", "https", "http", "hf", "hf_model", "oci+fetch")


@dataclass(frozen=True, slots=True)
class ModelPin:
    """Content of a model when it was deployed; part of the pod template, so changed content is another revision.

    `digest` is `sha256:` of local files; of a store `commit:`, `manifest:`, `versions:` or `etags:`. `files` maps
    each path to its own digest or version, unless there are too many of them.
    """

    digest: str
    size: int = 0
    files: Mapping[str, str] = field(default_factory=dict)


def scheme_of(uri: str) -> str:
    """Return the scheme; empty: a path."""
    return uri.partition("://")[0] if "://" in uri else ""


def is_local(uri: str) -> bool:
    return scheme_of(uri) in LOCAL_SCHEMES


def local_path(uri: str) -> str:
    return uri.partition("://")[2] or uri


def encode(pins: Mapping[str, ModelPin]) -> str:
    """Return the pins as JSON, the same for equal ones; empty: none."""
    written = {uri: {key: value for key, value in asdict(pin).items() if value} for uri, pin in pins.items()}
    return msgspec.json.encode(written, order="deterministic").decode() if pins else ""


def decode(text: str) -> dict[str, ModelPin]:
    try:
        return msgspec.json.decode(text, type=dict[str, ModelPin]) if text else {}
    except msgspec.MsgspecError as error:
        message = f"metadata.annotations.{ANNOTATION_PINS} is set by deploy and is not valid: {error}"
        raise UsageError(message, "remove it from the manifest") from error


def pins_of(manifest: Mapping[str, Any]) -> dict[str, ModelPin]:
    """Return the pins in the pod template of a workload's manifest."""
    template = (manifest.get("spec") or {}).get("template")
    metadata = (template.get("metadata") or {}) if isinstance(template, Mapping) else {}
    return decode(str((metadata.get("annotations") or {}).get(ANNOTATION_PINS, "")))


def changed_files(old: ModelPin, new: ModelPin) -> list[str]:
    """Return `+ new.bin`, `- old.bin`, `~ changed.bin` between two pins; empty if either has too many files to list."""
    if not old.files or not new.files:
        return []
    names = sorted({*old.files, *new.files})
    signs = {name: "+" if name not in old.files else "-" if name not in new.files else "~" for name in names}
    return [f"{signs[name]} {name}" for name in names if old.files.get(name) != new.files.get(name)]
