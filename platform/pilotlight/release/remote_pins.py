"""Pins of remote model URIs, resolved by `python -m pilotlight_predictor pin` with the credentials of this shell.

In a process of its own: the store's libraries take long to import, and a call to a silent store cannot be interrupted.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from pilotlight.errors import PlatformError
from pilotlight.k8s.model_pins import ModelPin, decode
from pilotlight.k8s.names import ANNOTATION_PINS
from pilotlight.release.plan_and_render import Documents
from pilotlight.wire.messages import redact_uri

TIMEOUT_S: Final = 20.0
START_S: Final = 5.0  # for Python and the store's libraries, on a busy machine
ETAGS: Final = "etags:"  # pins of stores that do not keep old content


def resolve_remote(uris: Sequence[str], timeout: float = TIMEOUT_S) -> dict[str, ModelPin | str]:
    """Return the pin of each remote URI, or in one sentence why it has none; `timeout` is for all together."""
    return {uri: _pin(document) for uri, document in _read(uris, timeout).items()}


def remote_files(uri: str) -> list[str]:
    """Return the paths of the files below a remote URI. Raise PlatformError if they cannot be listed."""
    document = _read([uri], TIMEOUT_S, "--names")[uri]
    if "names" not in document:
        raise PlatformError(str(document.get("error", "its files cannot be listed")))
    return list(document["names"])


def _read(uris: Sequence[str], timeout: float, *flags: str) -> dict[str, dict[str, Any]]:
    # The URIs go to stdin: arguments are visible to others, and URIs may be signed.
    limit = max(timeout - START_S, timeout / 2)
    try:
        process = subprocess.run(  # noqa: S603 - the predictor, no shell
            [sys.executable, "-m", "pilotlight_predictor", "pin", *flags, "--timeout", f"{limit:g}", "-"],
            input="\n".join(uris), capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {uri: {"error": f"its store did not answer within {timeout:g} s"} for uri in uris}
    try:
        documents: dict[str, Any] = json.loads(process.stdout)
    except ValueError:
        last = process.stderr.strip().rpartition("\n")[2] or f"exit code {process.returncode}"
        return {uri: {"error": f"its content cannot be resolved ({last})"} for uri in uris}
    return {uri: documents.get(uri) or {} for uri in uris}


def _pin(document: dict[str, Any]) -> ModelPin | str:
    if "digest" not in document:
        return str(document.get("error", "its content cannot be resolved"))
    return ModelPin(digest=document["digest"], size=document["size"], files=document["files"])


def check_unchanged(documents: Documents) -> None:
    """Raise PlatformError if a store without versions no longer has the content that these documents are pinned to.

    A store that this machine cannot ask is left to the pods.
    """
    annotations = (service.annotations.get(ANNOTATION_PINS, "") for service in documents.services)
    pins = {uri: pin for text in annotations for uri, pin in decode(text).items() if pin.digest.startswith(ETAGS)}
    for uri, stored in resolve_remote(list(pins)).items() if pins else ():
        if isinstance(stored, ModelPin) and stored.digest.startswith(ETAGS) and stored.digest != pins[uri].digest:
            message = f"{redact_uri(uri)} has changed since this release was deployed, and its store keeps no versions"
            raise PlatformError(
                f"ModelChanged: {message}", "put the old files back, or deploy the new: platformctl deploy -f FILE"
            )
