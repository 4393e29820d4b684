"""Signature of an exported program (.pt2), read from its JSON in milliseconds, without torch or weights.

torch.py derives a configuration from it; torch_modules.py takes the order of the arguments.
"""

import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pilotlight_predictor.backends.torch_signature import Argument
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.tensors import TensorSpec

# torch._export.serde.schema.ScalarType, which is part of the file format.
_SCALAR_TYPES: Final = {
    1: "UINT8", 2: "INT8", 3: "INT16", 4: "INT32", 5: "INT64", 6: "FP16", 7: "FP32", 8: "FP64", 12: "BOOL", 13: "BF16",
    28: "UINT16", 34: "UINT32", 35: "UINT64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExportedProgram:
    arguments: Sequence[Argument]
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    batchable: bool


def is_exported(names: Iterable[str]) -> bool:
    return any(_is_program(name) for name in names)


def _is_program(name: str) -> bool:
    return name.endswith("/models/model.json") or name == "serialized_exported_program.json"


def read_program(path: Path) -> ExportedProgram:
    program = _program(path)
    signature = program["graph_module"]["signature"]
    values = program["graph_module"]["graph"]["tensor_values"]
    call = program["graph_module"]["module_call_graph"][0]["signature"]
    in_names = _names(signature["input_specs"], "user_input")
    graph_outputs = _names(signature["output_specs"], "user_output")
    out_names = _output_names(json.loads(call["out_spec"])[1], len(graph_outputs))
    sizes = [values[name]["sizes"] for name in (*in_names, *graph_outputs)]
    # Batchable if the first dimension of all tensors is the same dynamic size.
    symbols = {json.dumps(dims[0].get("as_expr")) if dims else "" for dims in sizes}
    return ExportedProgram(
        arguments=_arguments(in_names, json.loads(call["in_spec"])[1]),
        inputs=[_spec(name, values[name]) for name in in_names],
        outputs=[_spec(name, values[node]) for name, node in zip(out_names, graph_outputs, strict=True)],
        batchable=len(symbols) == 1 and not symbols & {"", "null"},
    )


def _program(path: Path) -> Mapping[str, Any]:
    with zipfile.ZipFile(path) as archive:
        name = next((name for name in archive.namelist() if _is_program(name)), None)
        if name is None:
            raise LoadFailed(f"{path.name} holds no exported program: save it by torch.export.save")
        program: Mapping[str, Any] = json.loads(archive.read(name))
        return program


def _names(specs: Sequence[Mapping[str, Any]], kind: str) -> list[str]:
    """Names of tensors among the program's inputs or outputs, without constants that the export fixed."""
    args = [spec[kind]["arg"] for spec in specs if kind in spec]
    return [arg["as_tensor"]["name"] for arg in args if "as_tensor" in arg]


def _arguments(names: Sequence[str], in_spec: Mapping[str, Any]) -> list[Argument]:
    """Arguments of `forward`; those of kwargs are keyword-only."""
    by_position = len(in_spec["children_spec"][0]["children_spec"])
    return [Argument(name, keyword_only=index >= by_position) for index, name in enumerate(names)]


def _output_names(out_spec: Mapping[str, Any], count: int) -> list[str]:
    if out_spec["type"] == "builtins.dict":
        keys: list[str] = json.loads(out_spec["context"])
        if len(keys) == count:
            return keys
    return [f"OUTPUT__{i}" for i in range(count)]


def _spec(name: str, value: Mapping[str, Any]) -> TensorSpec:
    datatype = _SCALAR_TYPES.get(value["dtype"])
    if datatype is None:
        raise LoadFailed(f"tensor {name!r} has a torch type that no V2 datatype stands for: cast it inside the module")
    return TensorSpec(name, datatype, tuple(int(size.get("as_int", -1)) for size in value["sizes"]))
