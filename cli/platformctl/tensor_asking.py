"""`microservice infer` for models that do not chat: whether one does, and what to type where it does not.

A body with `inputs` goes to V2's `infer` as it is. Who sent a prompt to a model of tensors is told what it takes.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices import archs, asking, kinds

OURS: Final = "pilotlight"
LOOK_S: Final = 10.0


def by_tensors(network_arch: str, model_path: str = "") -> bool:
    """`pilotlight` is any model that our predictor serves: only its files tell, and only those of this machine."""
    if network_arch == OURS:
        path = Path(model_path or "/nowhere")
        return path.suffix == ".onnx" or any(found for each in ("*.onnx", "*/*.onnx") for found in path.glob(each))
    return network_arch in kinds.networks() and kinds.schema(network_arch).asked == "tensors"


def is_tensors(network_arch: str, body: Mapping[str, Any]) -> bool:
    """Whether a whole request is one of V2; containers of others have no V2."""
    return "inputs" in body and "messages" not in body and archs.arch(network_arch, os.environ).command == OURS


def refuse_prompt(network_arch: str) -> None:
    """Before anything is asked for or sent: a network that is asked by tensors has no use for a prompt."""
    if network_arch != OURS and by_tensors(network_arch):
        raise UsageError(
            f"{network_arch} does not chat: --prompt, --image and --video are no requests to it",
            f"--body FILE with V2's tensors, {example({})}; `microservice batch` and the control API take pictures",
        )


def instead(url: str, job_id: str, error: PlatformError) -> PlatformError:
    """The same refusal, or where it was for want of a model that chats, what this one takes and how it is asked."""
    if asking.NO_CHAT not in str(error):
        return error
    command = f"platformctl microservice infer {job_id} --body FILE"
    told = example(asking.metadata(url, LOOK_S))
    return UsageError("this model does not chat, it takes tensors", f"{command}, where FILE has {told}")


def example(metadata: Mapping[str, Any]) -> str:
    """A body of V2 for this model; open dimensions are 1."""
    inputs = metadata.get("inputs") or [{"name": "NAME", "shape": [1], "datatype": "FP32"}]
    made = [
        {"name": each["name"], "shape": [max(1, int(size)) for size in each["shape"]], "datatype": each["datatype"],
         "data": ["…"]}
        for each in inputs
    ]  # fmt: skip
    return json.dumps({"inputs": made}, ensure_ascii=False)


def lines(document: Any) -> list[str]:
    """One for each output."""
    outputs = document.get("outputs") if isinstance(document, dict) else None
    if not isinstance(outputs, list):
        raise PlatformError(f"it answered 200 without outputs: {str(document)[:200]}")
    return [f"{each['name']} {each['datatype']} {each['shape']}: {json.dumps(each.get('data'))}" for each in outputs]
