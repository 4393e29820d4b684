"""The trace extension over gRPC: one method that changes what it is given, and tells what holds."""

from typing import Any

from pilotlight_predictor.rpc.messages import Message, decode, encode
from pilotlight_predictor.rpc.service import RpcCall
from pilotlight_predictor.server import Server


def trace_setting(server: Server, call: RpcCall) -> bytes:
    asked, name = read(call)
    model = server.find(name).name if name else ""
    return answer(server.traces.change(asked, model) if asked else server.traces.settings(model))


def read(call: RpcCall) -> tuple[dict[str, Any], str]:
    """The settings, as HTTP has them, and the model's name; a setting without values goes back to what held before."""
    request: Message = decode("inference.TraceSettingRequest", call.body)
    given = {key: value.get("value", []) for key, value in request.get("settings", {}).items()}
    return {key: values or None for key, values in given.items()}, request.get("model_name", "")


def answer(told: dict[str, Any]) -> bytes:
    lists = {key: {"value": value if isinstance(value, list) else [value]} for key, value in told.items()}
    return encode("inference.TraceSettingResponse", {"settings": lists})
