"""Storage URIs of models, and the resolution of paths relative to a document."""

import os.path
from typing import Final

from pilotlight.spec.problems import SourceLocation
from pilotlight.spec.types import Field, MapOf, Record, String

STORAGE_URI: Final = String(
    r"\S+", "a URI such as s3://bucket/path, pvc://claim/path, or ./model.onnx beside this file"
)
STORAGE: Final = Record(
    "ModelStorageSpec",
    {
        "key": Field(String(), "Which entry of the storage secret holds the credentials."),
        "path": Field(String(), "Path of the model within the storage."),
        "schemaPath": Field(String(), "Path of the model's schema within the storage."),
        "parameters": Field(MapOf(String()), "Overrides of the storage's settings: type, bucket, endpoint_url, …"),
    },
)


def resolve_uri(uri: str, location: SourceLocation) -> str:
    """Resolve `./model.onnx` against the document's folder, or the working directory for `--set`; keep other URIs."""
    if not uri.startswith(("./", "../")):
        return uri
    folder = "" if location.file.startswith("--set ") else os.path.dirname(location.file)
    return os.path.abspath(os.path.join(folder, uri))
