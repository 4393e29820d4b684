"""`microservice infer` for models without chat: detection and the hint for V2 requests.

A body with `inputs` is sent to V2's `infer` as it is.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices import archs, asking, kinds

OURS: Final = "pilotlight"
METADATA_TIMEOUT_S: Final = 10.0


def takes_tensors(network_arch: str, model_path: str = "") -> bool:
    """Whether the network takes tensors. For `pilotlight` the local model files decide."""
    if network_arch == OURS:
        path = Path(model_path or "/nowhere")
        return path.suffix == ".onnx" or any(file for each in ("*.onnx", "*/*.onnx") for file in path.glob(each))
    return network_arch in kinds.networks() and kinds.schema(network_arch).protocol == "tensors"


def is_tensor_request(network_arch: str, body: Mapping[str, Any]) -> bool:
    """Whether a body is a V2 request for the predictor; other containers have no V2."""
    return "inputs" in body and "messages" not in body and archs.arch(network_arch, os.environ).command == OURS


def refuse_prompt(network_arch: str) -> None:
    """Raise UsageError for a network without chat, before prompting or sending."""
    if network_arch != OURS and takes_tensors(network_arch):
        raise UsageError(
            f"{network_arch} does not chat: --prompt, --image and --video are no requests to it",
            f"--body FILE with V2's tensors, {example_body({})}; "
            "`microservice batch` and the control API take pictures",
        )


def explain_refusal(url: str, job_id: str, error: PlatformError) -> PlatformError:
    """Return the error, or one with an example V2 body if the model has no chat."""
    if asking.NO_CHAT not in str(error):
        return error
    command = f"platformctl microservice infer {job_id} --body FILE"
    body = example_body(asking.metadata(url, METADATA_TIMEOUT_S))
    return UsageError("this model does not chat, it takes tensors", f"{command}, where FILE has {body}")


def example_body(metadata: Mapping[str, Any]) -> str:
    """Return a V2 body for the model; open dimensions are 1."""
    inputs = metadata.get("inputs") or [{"name": "NAME", "shape": [1], "datatype": "FP32"}]
    tensors = [
        {"name": each["name"], "shape": [max(1, int(size)) for size in each["shape"]], "datatype": each["datatype"],
         "data": ["…"]}
        for each in inputs
    ]  # fmt: skip
    return json.dumps({"inputs": tensors}, ensure_ascii=False)


def output_lines(document: Any) -> list[str]:
    """Return one line per output."""
    outputs = document.get("outputs") if isinstance(document, dict) else None
    if not isinstance(outputs, list):
        raise PlatformError(f"it answered 200 without outputs: {str(document)[:200]}")
    return [f"{each['name']} {each['datatype']} {each['shape']}: {json.dumps(each.get('data'))}" for each in outputs]
