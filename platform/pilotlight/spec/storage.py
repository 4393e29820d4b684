"""Where a model's files are: which URIs a document may name, and what a path relative to the document means."""

import os.path
from typing import Final

from pilotlight.spec.problems import Place
from pilotlight.spec.types import Field, MapOf, Record, Text

STORAGE_URI: Final = Text(r"\S+", "a URI such as s3://bucket/path, pvc://claim/path, or ./model.onnx beside this file")
STORAGE: Final = Record(
    "ModelStorageSpec",
    {
        "key": Field(Text(), "Which entry of the storage secret holds the credentials."),
        "path": Field(Text(), "Path of the model within the storage."),
        "schemaPath": Field(Text(), "Path of the model's schema within the storage."),
        "parameters": Field(MapOf(Text()), "Overrides of the storage's settings: type, bucket, endpoint_url, …"),
    },
)


def located(uri: str, place: Place) -> str:
    """`./model.onnx` is beside the document that names it, or where `--set` was typed; other URIs are as they stand."""
    if not uri.startswith(("./", "../")):
        return uri
    folder = "" if place.file.startswith("--set ") else os.path.dirname(place.file)
    return os.path.abspath(os.path.join(folder, uri))
