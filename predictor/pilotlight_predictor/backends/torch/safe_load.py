"""Files of torch.save and torch.export.save: the only place of this backend that reads pickles. Used by modules.py.

`weights_only` reads nothing but tensors; anything else is refused unless it is pinned (trusted_pickles.py).
"""

import io
import json
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from pilotlight.wire.model_formats import is_exported_program
from pilotlight_predictor.backends.base import LoadSpec, check_unpacked_memory
from pilotlight_predictor.backends.torch.forward_signature import Argument
from pilotlight_predictor.backends.trusted_pickles import Find, finding, open_trusted, refusal
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import LoadFailed

# torch._export.serde.schema.ScalarType, which is part of the file format.
_SCALAR_TYPES: Final = {
    1: "UINT8", 2: "INT8", 3: "INT16", 4: "INT32", 5: "INT64", 6: "FP16", 7: "FP32", 8: "FP64", 12: "BOOL", 13: "BF16",
    28: "UINT16", 34: "UINT32", 35: "UINT64",
}  # fmt: skip
_MORE: Final = "more than tensors"
_INSTEAD: Final = "save the weights as safetensors"


@dataclass(frozen=True, slots=True)
class ExportedProgram:
    """Signature of an exported program (.pt2), read from its JSON in milliseconds, without torch or weights."""

    arguments: Sequence[Argument]
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    batchable: bool


def read_program(path: Path) -> ExportedProgram:
    with zipfile.ZipFile(path) as archive:
        file = next(filter(is_exported_program, archive.namelist()), None)
        if file is None:
            raise LoadFailed(f"{path.name} holds no exported program: save it by torch.export.save")
        program = json.loads(archive.read(file))
    signature = program["graph_module"]["signature"]
    values = program["graph_module"]["graph"]["tensor_values"]
    call = program["graph_module"]["module_call_graph"][0]["signature"]
    in_names = _names(signature["input_specs"], "user_input")
    graph_outputs = _names(signature["output_specs"], "user_output")
    out_names, out_spec = [f"OUTPUT__{i}" for i in range(len(graph_outputs))], json.loads(call["out_spec"])[1]
    if out_spec["type"] == "builtins.dict" and len(keys := json.loads(out_spec["context"])) == len(graph_outputs):
        out_names = keys
    by_position = len(json.loads(call["in_spec"])[1]["children_spec"][0]["children_spec"])  # the others are kwargs
    sizes = [values[name]["sizes"] for name in (*in_names, *graph_outputs)]
    # Batchable if the first dimension of all tensors is the same dynamic size.
    symbols = {json.dumps(dims[0].get("as_expr")) if dims else "" for dims in sizes}
    return ExportedProgram(
        arguments=[Argument(name, keyword_only=index >= by_position) for index, name in enumerate(in_names)],
        inputs=[_spec(name, values[name]) for name in in_names],
        outputs=[_spec(name, values[node]) for name, node in zip(out_names, graph_outputs, strict=True)],
        batchable=len(symbols) == 1 and not symbols & {"", "null"},
    )


def _names(specs: Sequence[Mapping[str, Any]], kind: str) -> list[str]:
    """Names of tensors among the program's inputs or outputs, without constants that the export fixed."""
    args = [spec[kind]["arg"] for spec in specs if kind in spec]
    return [arg["as_tensor"]["name"] for arg in args if "as_tensor" in arg]


def _spec(name: str, value: Mapping[str, Any]) -> TensorSpec:
    datatype = _SCALAR_TYPES.get(value["dtype"])
    if datatype is None:
        raise LoadFailed(f"tensor {name!r} has a torch type that no V2 datatype stands for: cast it inside the module")
    return TensorSpec(name, datatype, tuple(int(size.get("as_int", -1)) for size in value["sizes"]))


def load(spec: LoadSpec, own: Find) -> Any:
    """Read a file of torch.save: a state dict, or a whole module if the file is pinned.

    `own` finds classes of the module that are not installed.
    """
    import torch

    if spec.path.name in spec.trusted_pickles:
        trusted = open_trusted(spec.path, spec.trusted_pickles, _MORE, _INSTEAD)
        with trusted as file, finding(own, spec.path.name):
            return torch.load(file, map_location=str(spec.device), weights_only=False)
    if mmap := zipfile.is_zipfile(spec.path):
        check_unpacked_memory(spec.path)
    try:
        return torch.load(spec.path, map_location=str(spec.device), weights_only=True, mmap=mmap)
    except pickle.UnpicklingError:  # its advice is to set weights_only=False
        raise refusal(spec.path, _MORE, _INSTEAD) from None
    except (RuntimeError, EOFError, KeyError) as error:
        raise LoadFailed(f"{spec.path.name} is damaged or not a torch.save file: {error}") from error


def load_exported(spec: LoadSpec) -> Any:
    """Read an exported program, after checking all its parts: torch.export.load falls back to plain pickle."""
    import torch

    with _open_exported(spec) as file:
        try:
            return torch.export.load(file)
        except Exception as error:  # of many types
            raise LoadFailed(f"{spec.path.name} is not an exported program for this torch: {error}") from error


def _open_exported(spec: LoadSpec) -> IO[bytes]:
    """Open the file that was checked: the name may point to another one by now."""
    if spec.path.name in spec.trusted_pickles:
        return open_trusted(spec.path, spec.trusted_pickles, _MORE, _INSTEAD)
    file = spec.path.open("rb")
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                if _needs_pickle(archive, name):
                    raise refusal(spec.path, f"a pickle ({name})", _INSTEAD)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _needs_pickle(archive: zipfile.ZipFile, name: str) -> bool:
    if name.endswith("_config.json"):
        entries = json.loads(archive.read(name)).get("config", {})
        return any(entry.get("use_pickle") for entry in entries.values())
    if name.rpartition("/")[2].startswith("opaque_obj"):
        return True
    return name.endswith(".pt") and not _tensors_only(archive.read(name))


def _tensors_only(content: bytes) -> bool:
    import torch

    try:
        torch.load(io.BytesIO(content), weights_only=True, map_location="meta")
    except Exception:
        return not content
    return True
