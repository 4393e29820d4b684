"""The logging extension over gRPC: one method that changes what it is given, and tells what holds."""

from typing import Any

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.rpc.messages import decode, encode
from pilotlight_predictor.rpc.service import RpcCall
from pilotlight_predictor.server import Server


def log_settings(server: Server, call: RpcCall) -> bytes:
    asked = read(call)
    return answer(server.log_settings.change(asked) if asked else server.log_settings.told())


def read(call: RpcCall) -> dict[str, Any]:
    given = decode("inference.LogSettingsRequest", call.body).get("settings", {})
    for key, value in given.items():
        if not value:
            raise BadRequest(f"settings.{key[:100]} has no value: set one of bool, uint32 or string_param")
    return {key: next(iter(value.values())) for key, value in given.items()}


def answer(told: dict[str, Any]) -> bytes:
    return encode("inference.LogSettingsResponse", {"settings": {key: _value(value) for key, value in told.items()}})


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"bool_param": value}
    return {"uint32_param": value} if isinstance(value, int) else {"string_param": value}
