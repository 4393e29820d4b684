"""gRPC on a port of its own, beside the HTTP dialects and around the same inference.

Reading order: port.py takes the port before grpcio is there; front.py starts grpcio once models are loading, and
drains it; desk.py takes each call through the gate to its method. TABLE names the services, one module each with
`SERVICES`; v2.py is the first. The codecs (wire.py, messages.py, infer_request.py, infer_response.py) know no grpcio.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pilotlight_predictor.rpc.service import Service

TABLE: Final = (
    "pilotlight_predictor.rpc.v2",
    "pilotlight_predictor.rpc.trtis",
    "pilotlight_predictor.rpc.predict",
    "pilotlight_predictor.rpc.health",
    "pilotlight_predictor.rpc.reflection",
)


def services() -> "tuple[Service, ...]":
    return tuple(service for name in TABLE for service in import_module(name).SERVICES)
