"""Files of torch.save and torch.export.save: the only place of this backend that reads pickles. Used by modules.py.

`weights_only` reads nothing but tensors; anything else is refused unless it is pinned (trusted_pickles.py).
"""

import json
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

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
        with open_trusted(spec.path, spec.trusted_pickles, _MORE, _INSTEAD) as file, finding(own, spec.path.name):
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
    """Read an exported program. Raise LoadFailed for one with code that is not pinned.

    torch.export.load reads pickles, objects of C++ and compiled libraries, too.
    """
    import torch

    pinned = spec.path.name in spec.trusted_pickles
    with open_trusted(spec.path, spec.trusted_pickles, _MORE, _INSTEAD) if pinned else spec.path.open("rb") as file:
        if not pinned:
            with suppress(RuntimeError):  # of an older archive, or of none
                for name in torch._C.PyTorchFileReader(file).get_all_records():  # not zipfile, which may see others
                    if name.startswith("data/aotinductor/") or name.rpartition("/")[2].startswith("custom_obj"):
                        raise refusal(spec.path, f"compiled code ({name})", _INSTEAD)
            file.seek(0)
        try:
            with nullcontext() if pinned else finding(partial(_refuse_pickle, spec.path)):
                return torch.export.load(file)
        except LoadFailed:
            raise
        except Exception as error:  # of many types
            raise LoadFailed(f"{spec.path.name} is not an exported program for this torch: {error}") from error


def _refuse_pickle(path: Path, module: str, name: str) -> NoReturn:
    raise refusal(path, f"a pickle ({module}.{name})", _INSTEAD)
