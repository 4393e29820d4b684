"""Model paths of microservices: the Hugging Face Hub, a path in the container, or cloud storage. Pure."""

import re
from typing import Final, Literal

from msgspec import Struct

from pilotlight.errors import UsageError

HUB: Final = "hf_model://"
CLOUD: Final = ("s3", "gs", "gcs", "az", "azure", "abfs", "abfss", "wasbs", "http", "https", "hf")
_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+(?:@[\w./-]+)?")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class ModelPath(Struct, frozen=True):
    kind: Literal["hub", "local", "remote"]
    value: str  # org/model, or a path, or a URI

    @property
    def uri(self) -> str:
        return HUB + self.value if self.kind == "hub" else self.value


def parse(text: str, *, remote: bool = False) -> ModelPath:
    """Parse a model path. `remote`: allow cloud storage, for which the caller provides credentials."""
    if not text.strip():
        raise UsageError("model_path is missing", "--model-path hf_model://ORG/MODEL, or a path in the container")
    if any(ord(letter) < 32 or letter == "\x7f" for letter in text):
        raise UsageError("model_path has a control character in it")
    if text.startswith(HUB):
        name = text.removeprefix(HUB)
        if not _HUB_NAME.fullmatch(name):
            raise UsageError(f"model_path = {text}, must be hf_model://ORG/MODEL")
        return ModelPath("hub", name)
    if (scheme := _SCHEME.match(text)) is not None:
        return _with_scheme(text, scheme.group(1).lower(), remote)
    if text.startswith("/"):
        return ModelPath("local", text)
    raise UsageError(f"model_path = {text}, must be an absolute path in the container or hf_model://ORG/MODEL")


def _with_scheme(text: str, scheme: str, remote: bool) -> ModelPath:
    if remote and scheme in CLOUD:
        return ModelPath("remote", text)
    if scheme in CLOUD:
        reason = f"{scheme}:// is not supported: an inference microservice has no access to cloud storage"
        raise UsageError(f"model_path = {text}: {reason}", "copy the model to a path that the container sees first")
    raise UsageError(f"model_path = {text}: {scheme}:// is not known; write hf_model://ORG/MODEL or a path")
