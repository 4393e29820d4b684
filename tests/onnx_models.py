"""Small ONNX models, written into a model repository: identity of each datatype, sum and difference.

`onnx` is imported where it is used: tests that only speak to a server do not wait for it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

ONNX_TYPES = {
    "BOOL": "BOOL", "UINT8": "UINT8", "UINT16": "UINT16", "UINT32": "UINT32", "UINT64": "UINT64", "INT8": "INT8",
    "INT16": "INT16", "INT32": "INT32", "INT64": "INT64", "FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE",
    "BF16": "BFLOAT16", "BYTES": "STRING",
}  # fmt: skip
Dims = Sequence[int | str]


def write_identity(
    repository: Path, name: str, datatype: str, dims: Dims = ("n",), config: str = "max_batch_size: 0", version: int = 1
) -> Path:
    """x → y, unchanged."""
    return write_model(
        repository,
        name,
        [("Identity", ["x"], ["y"])],
        {"x": (datatype, dims)},
        {"y": (datatype, dims)},
        config,
        version,
    )


def write_add_sub(repository: Path, name: str, datatype: str = "FP32", config: str = "", version: int = 1) -> Path:
    """a, b of [-1, 4] → sum, difference; its leading dimension is a batch unless the configuration says otherwise."""
    dims = ("batch", 4)
    nodes = [("Add", ["a", "b"], ["sum"]), ("Sub", ["a", "b"], ["difference"])]
    inputs, outputs = dict.fromkeys("ab", (datatype, dims)), dict.fromkeys(("sum", "difference"), (datatype, dims))
    return write_model(repository, name, nodes, inputs, outputs, config, version)


def write_model(
    repository: Path,
    name: str,
    nodes: Sequence[tuple[str, Sequence[str], Sequence[str]]],
    inputs: dict[str, tuple[str, Dims]],
    outputs: dict[str, tuple[str, Dims]],
    config: str = "",
    version: int = 1,
) -> Path:
    """`nodes` are (operator, inputs, outputs); a configuration is written where there is one. The folder."""
    from onnx import helper, save

    graph = helper.make_graph([helper.make_node(*node) for node in nodes], name, _infos(inputs), _infos(outputs))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder = repository / name
    (folder / str(version)).mkdir(parents=True)
    save(model, folder / str(version) / "model.onnx")
    if config:
        (folder / "config.pbtxt").write_text(config)
    return folder


def _infos(tensors: dict[str, tuple[str, Dims]]) -> list[Any]:
    from onnx import TensorProto, helper

    return [
        helper.make_tensor_value_info(name, getattr(TensorProto, ONNX_TYPES[datatype]), list(dims))
        for name, (datatype, dims) in tensors.items()
    ]


def write_python(repository: Path, name: str, source: str, config: str = "", version: int = 1) -> Path:
    """A model.py; its INPUTS and OUTPUTS stand in for a configuration."""
    folder = repository / name
    (folder / str(version)).mkdir(parents=True)
    (folder / str(version) / "model.py").write_text(source)
    if config:
        (folder / "config.pbtxt").write_text(config)
    return folder
