"""The calls of the gRPC comparison: reads, inferences good and bad, repository calls, streams."""

import json
from collections.abc import Iterator
from typing import Any, Final

from tests.differential.case import RpcCase
from tests.differential.http_repository import CONFIG
from tests.differential.models import AT_START, DATATYPES
from tests.differential.tensors import VALUES, blob

Fields = dict[str, Any]
MODELS: Final = (*AT_START, "spare", "unknown")
VERSIONS: Final = ("", "1", "2", "3", "x")
READS: Final = ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")
CONTENTS: Final = {
    "BOOL": "bool", "UINT8": "uint", "UINT16": "uint", "UINT32": "uint", "UINT64": "uint64", "INT8": "int",
    "INT16": "int", "INT32": "int", "INT64": "int64", "FP32": "fp32", "FP64": "fp64", "BYTES": "bytes",
}  # fmt: skip
FOUR: Final = [1.0, 2.0, 3.0, 4.0]
RAW: Final = blob("FP32", FOUR)
PARAMETERS: Final[dict[str, Fields]] = {
    "text": {"p": {"string_param": "x"}}, "number": {"p": {"int64_param": 3}}, "flag": {"p": {"bool_param": True}},
    "real": {"p": {"double_param": 0.5}}, "unsigned": {"p": {"uint64_param": 3}}, "empty": {"p": {}},
    "priority": {"priority": {"uint64_param": 1}}, "priority-text": {"priority": {"string_param": "x"}},
    "timeout": {"timeout": {"int64_param": 5_000_000}}, "timeout-text": {"timeout": {"string_param": "x"}},
    "reserved": {"triton_x": {"int64_param": 1}}, "headers": {"headers": {"string_param": "x"}},
}  # fmt: skip


def rpc_cases() -> Iterator[RpcCase]:
    for method in ("ServerLive", "ServerReady", "ServerMetadata"):
        yield RpcCase(method.lower(), method)
    for method in READS:
        for model in MODELS:
            for version in VERSIONS:
                name = f"{method.lower()}/{model}" + (f"/{version}" if version else "")
                yield RpcCase(name, method, {"name": model, "version": version}, kinds_only=method == "ModelStatistics")
    yield from _datatypes()
    yield from _inferences()
    yield from _mistakes()
    yield from _streams()
    yield from _repository()


def _datatypes() -> Iterator[RpcCase]:
    for datatype in DATATYPES:
        name, values = datatype.lower(), VALUES[datatype]
        tensor = {"name": name, "datatype": datatype, "shape": [3]}
        yield _infer(f"{name}/raw", "types", inputs=[tensor], raw_input_contents=[blob(datatype, values)])
        if field := CONTENTS.get(datatype):
            spoken = [each.encode() if isinstance(each, str) else each for each in values]
            contents = {f"{field}_contents": spoken}
            yield _infer(f"{name}/typed", "types", inputs=[{**tensor, "contents": contents}])


def _infer(name: str, model: str = "add", **request: Any) -> RpcCase:
    return RpcCase(f"infer/{name}", "ModelInfer", {"model_name": model, **request})


def _pair(**changed: Any) -> list[Fields]:
    first = {"name": "a", "datatype": "FP32", "shape": [1, 4]}
    return [first, {**first, "name": "b", **changed}]


def _good(**more: Any) -> Fields:
    return {"inputs": _pair(), "raw_input_contents": [RAW, RAW], **more}


def _inferences() -> Iterator[RpcCase]:
    yield _infer("plain", **_good())
    yield _infer("id", **_good(id="größe"))
    for name, parameters in PARAMETERS.items():
        yield _infer(f"parameters/{name}", **_good(parameters=parameters))
    for count in (0, 1, 2, 9, -1):
        asked = [{"name": "sum", "parameters": {"classification": {"int64_param": count}}}]
        yield _infer(f"classes/{count}", **_good(outputs=asked))
    outputs = {
        "one": ["sum"],
        "both": ["difference", "sum"],
        "twice": ["sum", "sum"],
        "unknown": ["x"],
        "nameless": [""],
    }
    for name, names in outputs.items():
        yield _infer(f"outputs/{name}", **_good(outputs=[{"name": each} for each in names]))
    for version in VERSIONS:
        x = [{"name": "x", "datatype": "INT32", "shape": [2]}]
        raw = [blob("INT32", [1, 2])]
        yield _infer(f"versions/{version}", "versions", inputs=x, raw_input_contents=raw, model_version=version)
    for model in ("unknown", "spare", "fails", ""):
        x = [{"name": "x", "datatype": "INT32", "shape": [2]}]
        yield _infer(f"model/{model}", model, inputs=x, raw_input_contents=[blob("INT32", [1, 2])])


def _mistakes() -> Iterator[RpcCase]:
    yield _infer("inputs/none")
    yield _infer("inputs/one-missing", inputs=_pair()[:1], raw_input_contents=[RAW])
    yield _infer("inputs/one-twice", inputs=_pair(name="a"), raw_input_contents=[RAW, RAW])
    yield _infer("inputs/unknown", inputs=_pair(name="c"), raw_input_contents=[RAW, RAW])
    for name, change in {
        "datatype-other": {"datatype": "INT32"}, "datatype-unknown": {"datatype": "FLOAT"},
        "datatype-none": {"datatype": ""},
        "shape-none": {"shape": []}, "shape-other": {"shape": [1, 3]}, "shape-rows": {"shape": [2, 4]},
        "shape-flat": {"shape": [4]},
        "shape-negative": {"shape": [-1, 4]}, "shape-zero": {"shape": [0, 4]}, "shape-deep": {"shape": [1, 4, 1]},
    }.items():  # fmt: skip
        yield _infer(f"input/{name}", inputs=_pair(**change), raw_input_contents=[RAW, RAW])
    for name, raw in {
        "short": [RAW, RAW[:8]],
        "long": [RAW, RAW * 2],
        "empty": [RAW, b""],
        "none": [],
        "few": [RAW],
        "many": [RAW] * 3,
    }.items():
        yield _infer(f"raw/{name}", inputs=_pair(), raw_input_contents=raw)
    typed = {"contents": {"fp32_contents": FOUR}}
    yield _infer("typed/good", inputs=[{**each, **typed} for each in _pair()])
    yield _infer("typed/mixed", inputs=_pair(**typed), raw_input_contents=[RAW])
    yield _infer("typed/and-raw", inputs=_pair(**typed), raw_input_contents=[RAW, RAW])
    for name, contents in {
        "short": {"fp32_contents": [1.0]}, "long": {"fp32_contents": FOUR * 2}, "other": {"int_contents": [1, 2, 3, 4]},
        "none": {},
    }.items():  # fmt: skip
        yield _infer(f"typed/{name}", inputs=[{**_pair()[0], **typed}, {**_pair()[1], "contents": contents}])


def _streams() -> Iterator[RpcCase]:
    """Each sends its request twice."""
    good = {"model_name": "add", **_good(id="s")}
    yield RpcCase("stream/good", "ModelStreamInfer", good, stream=True)
    yield RpcCase("stream/unknown-model", "ModelStreamInfer", {**good, "model_name": "unknown"}, stream=True)
    yield RpcCase("stream/bad-shape", "ModelStreamInfer", {**good, "inputs": _pair(shape=[1, 3])}, stream=True)
    final = {"parameters": {"triton_enable_empty_final_response": {"bool_param": True}}}
    yield RpcCase("stream/empty-final", "ModelStreamInfer", {**good, **final}, stream=True)


def _repository() -> Iterator[RpcCase]:
    yield RpcCase("index/all", "RepositoryIndex")
    yield RpcCase("index/ready", "RepositoryIndex", {"ready": True})
    yield RpcCase("load/unknown", "RepositoryModelLoad", {"model_name": "unknown"})
    yield RpcCase("load/broken", "RepositoryModelLoad", {"model_name": "broken"})
    yield RpcCase("load/nameless", "RepositoryModelLoad")
    config = {"config": {"string_param": json.dumps({**CONFIG, "name": "reserve"})}}
    yield RpcCase("load/reserve", "RepositoryModelLoad", {"model_name": "reserve", "parameters": config})
    yield RpcCase("modelready/reserve/loaded", "ModelReady", {"name": "reserve"})
    yield RpcCase("unload/unknown", "RepositoryModelUnload", {"model_name": "unknown"})
    yield RpcCase("unload/reserve", "RepositoryModelUnload", {"model_name": "reserve"})
    yield RpcCase("modelready/reserve/unloaded", "ModelReady", {"name": "reserve"})
