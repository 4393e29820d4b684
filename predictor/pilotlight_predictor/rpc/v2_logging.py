"""Logging extension of V2 over gRPC: one method that changes the given settings and returns all of them."""

from typing import Any

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.rpc.messages import decode, encode
from pilotlight_predictor.rpc.service import GrpcRequest
from pilotlight_predictor.server import Server


def log_settings(server: Server, request: GrpcRequest) -> bytes:
    settings = read_settings(request)
    return encode_settings(server.log_settings.change(settings) if settings else server.log_settings.values())


def read_settings(request: GrpcRequest) -> dict[str, Any]:
    entries = decode("inference.LogSettingsRequest", request.body).get("settings", {})
    for key, value in entries.items():
        if not value:
            raise BadRequest(f"settings.{key[:100]} has no value: set one of bool, uint32 or string_param")
    return {key: next(iter(value.values())) for key, value in entries.items()}


def encode_settings(settings: dict[str, Any]) -> bytes:
    return encode(
        "inference.LogSettingsResponse", {"settings": {key: _value(value) for key, value in settings.items()}}
    )


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"bool_param": value}
    return {"uint32_param": value} if isinstance(value, int) else {"string_param": value}
