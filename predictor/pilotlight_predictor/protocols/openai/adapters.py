"""LoRA adapters in the OpenAI protocol: lookup by name, objects of /v1/models, and vLLM's calls to load and unload.

User documentation: docs/how-to/llm.md.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from pilotlight_predictor.core.requests import NEWEST
from pilotlight_predictor.core.threads import in_thread
from pilotlight_predictor.errors import BadRequest, NotFound
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.protocols.v2.admin import checked_name
from pilotlight_predictor.server.handler_context import Server

PARAMETER: Final = "lora_name"  # sampling parameter with an adapter, as in Triton's vLLM backend
MAX_BYTES: Final = 1 << 16
TEXT: Final = "text/plain; charset=utf-8"


class AdapterCall(msgspec.Struct, forbid_unknown_fields=True):
    """Body of vLLM's calls; `model`, the base, is needed only beside other models that take adapters."""

    lora_name: str
    lora_path: str = ""
    load_inplace: bool = False
    lora_int_id: int | None = None
    model: str = ""


def find_base(server: Server, name: str) -> ModelVersion | None:
    """Return the model with an adapter of this name."""
    if server.registry.newest(name) is not None:
        return None
    return next((served for served in _adaptable(server) if name in served.adapter_paths), None)


def find(server: Server, name: str) -> ModelVersion:
    """Return the model of this name, or the one with this adapter. Raises NotFound or NotReady."""
    names = (each for served in _adaptable(server) for each in sorted(served.adapter_paths))
    try:
        return find_base(server, name) or server.find(name, NEWEST, names)
    except NotFound as error:  # in Triton's words, which its clients compare
        hint = str(error).removeprefix(f"Request for unknown model: '{name}' is not found")
        raise NotFound(f"model '{name}' does not exist{hint}" if hint != str(error) else hint) from None


def adapter_objects(served: ModelVersion, created: int) -> list[dict[str, Any]]:
    return [adapter_object(served, name, created) for name in sorted(served.adapter_paths)]


def adapter_object(served: ModelVersion, name: str, created: int) -> dict[str, Any]:
    adapter = {"root": served.adapter_paths.get(name, ""), "parent": served.name}
    return {"id": name, "object": "model", "created": created, "owned_by": "pilotlight", **adapter}


async def load(server: Server, request: HttpRequest) -> HttpResponse:
    call = _read(request)
    name = checked_name("lora_name", call.lora_name)
    if not call.lora_path:
        raise BadRequest("lora_path is missing, must be the folder of a LoRA adapter or its URI")
    if name in server.registry.names():
        raise BadRequest(f"lora_name = '{name}' is the name of a model; give the adapter another name")
    other = find_base(server, name)
    served = other or _base(server, call.model)
    if other is not None and call.model not in ("", other.name):
        raise BadRequest(f"lora_name = '{name}' is an adapter of model '{other.name}'; unload it first")

    def load_all() -> None:
        path = str(server.control.fetch(call.lora_path))
        for adapters in served.adapters:
            adapters.load(name, path, replace=call.load_inplace)

    await in_thread(load_all)
    log("adapter.loaded", f"'{name}' of '{served.name}' from {call.lora_path}", model=served.name)
    return HttpResponse(200, [f"Success: LoRA adapter '{name}' added successfully.".encode()], TEXT)


async def unload(server: Server, request: HttpRequest) -> HttpResponse:
    name = _read(request).lora_name
    served = find_base(server, name)
    if served is None:
        raise NotFound(f"adapter '{name[:100]}' is not loaded; GET /v1/models lists adapters with their parent")
    for adapters in served.adapters:
        await in_thread(lambda adapters=adapters: adapters.unload(name))  # type: ignore[misc]
    server.metrics.drop(name, served.version)
    log("adapter.unloaded", f"'{name}' of '{served.name}' accepts no more requests", model=served.name)
    return HttpResponse(200, [f"Success: LoRA adapter '{name}' removed successfully.".encode()], TEXT)


def _read(request: HttpRequest) -> AdapterCall:
    if len(request.body) > MAX_BYTES:
        raise BadRequest(f"the body has {len(request.body)} bytes, the limit of {request.path} is {MAX_BYTES}")
    try:
        return msgspec.json.decode(request.body, type=AdapterCall)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body must be a JSON object with lora_name and lora_path: {error}") from None


def _base(server: Server, model: str) -> ModelVersion:
    if model and not server.find(model).adapters:
        raise BadRequest(f"model '{model}' takes no adapters: only text models in Hugging Face's layout do")
    candidates = [server.find(model)] if model else list(_adaptable(server))
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise BadRequest("no model of this server takes adapters: only text models in Hugging Face's layout do")
    raise BadRequest(f"model is missing, must be one of {', '.join(each.name for each in candidates[:10])}")


def _adaptable(server: Server) -> Iterator[ModelVersion]:
    newest = (server.registry.newest(name) for name in server.registry.names())
    return (served for served in newest if served is not None and served.adapters)
