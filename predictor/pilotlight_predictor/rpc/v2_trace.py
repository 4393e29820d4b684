"""Trace extension of V2 over gRPC: one method that changes the given settings and returns all of them."""

from typing import Any

from pilotlight_predictor.rpc.messages import Message, decode, encode
from pilotlight_predictor.rpc.service import GrpcRequest
from pilotlight_predictor.server import Server


def trace_setting(server: Server, request: GrpcRequest) -> bytes:
    settings, name = read_settings(request)
    model = server.find(name).name if name else ""
    return encode_settings(server.traces.change(settings, model) if settings else server.traces.settings(model))


def read_settings(request: GrpcRequest) -> tuple[dict[str, Any], str]:
    """Return the settings, as over HTTP, and the model name; a setting without values is reset (None)."""
    message: Message = decode("inference.TraceSettingRequest", request.body)
    entries = {key: value.get("value", []) for key, value in message.get("settings", {}).items()}
    return {key: values or None for key, values in entries.items()}, message.get("model_name", "")


def encode_settings(settings: dict[str, Any]) -> bytes:
    lists = {key: {"value": value if isinstance(value, list) else [value]} for key, value in settings.items()}
    return encode("inference.TraceSettingResponse", {"settings": lists})
