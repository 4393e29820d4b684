"""Writes the message types of protos/ for the predictor: `make protos`; a test compares."""

import json
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "predictor" / "pilotlight_predictor" / "core" / "descriptors.json"


def files() -> FileDescriptorSet:
    """Compile all protos with protoc."""
    names = sorted(path.relative_to(HERE).as_posix() for path in HERE.rglob("*.proto"))
    with tempfile.NamedTemporaryFile() as out:
        if protoc.main(["", f"-I{HERE}", f"--descriptor_set_out={out.name}", *names]):
            sys.exit(1)
        return FileDescriptorSet.FromString(Path(out.name).read_bytes())


def kind(field: FieldDescriptorProto) -> str:
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def row(field: FieldDescriptorProto, message: DescriptorProto) -> list[Any]:
    """Return number, kind, message or enum, shape, kind of the keys of a map, and oneof; without empty ends."""
    shape, key = "many" if field.label == FieldDescriptorProto.LABEL_REPEATED else "one", ""
    for entry in message.nested_type:
        if entry.options.map_entry and field.type_name.endswith(f".{message.name}.{entry.name}"):
            number, shape, key = field.number, "map", kind(entry.field[0])
            field = FieldDescriptorProto(number=number, type=entry.field[1].type, type_name=entry.field[1].type_name)
    oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
    values = [field.number, kind(field), field.type_name.removeprefix("."), shape, key, oneof]
    while values[-1] in ("", "one"):
        values.pop()
    return values


def walk(scope: str, file: FileDescriptorProto | DescriptorProto) -> Iterator[tuple[str, Any]]:
    """Yield every message and enum with its full name; entries of maps are part of their fields."""
    nested = file.message_type if isinstance(file, FileDescriptorProto) else file.nested_type
    for enum in file.enum_type:
        yield scope + enum.name, enum
    for message in nested:
        if not message.options.map_entry:
            yield scope + message.name, message
            yield from walk(f"{scope}{message.name}.", message)


def document(every: FileDescriptorSet) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"messages": {}, "enums": {}, "files": {}}
    for file in every.file:
        scope = f"{file.package}." if file.package else ""
        types = dict(walk(scope, file))
        for name, declared in types.items():
            if isinstance(declared, DescriptorProto):
                found["messages"][name] = {field.name: row(field, declared) for field in declared.field}
            else:
                found["enums"][name] = {value.name: value.number for value in declared.value}
        services = [(scope + service.name, service.method) for service in file.service]
        symbols = [
            *types,
            *(name for name, _ in services),
            *(f"{n}.{m.name}" for n, methods in services for m in methods),
        ]
        raw = b64encode(file.SerializeToString()).decode()
        found["files"][file.name] = {"raw": raw, "needs": list(file.dependency), "symbols": symbols}
    return found


def text() -> str:
    """Return the JSON, with a line for each entry."""
    parts = []
    for part, entries in document(files()).items():
        rows = ",\n".join(f'"{name}":{json.dumps(entry, separators=(",", ":"))}' for name, entry in entries.items())
        parts.append(f'"{part}":{{\n{rows}\n}}')
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    TARGET.write_text(text())
