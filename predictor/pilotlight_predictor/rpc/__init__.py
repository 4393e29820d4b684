"""gRPC on a port of its own, beside the HTTP dialects and around the same inference.

Reading order: port.py takes the port; front.py listens on it once models are loading, and drains it. connection.py is a
client's HTTP/2 connection, on which call_head.py reads what is called, exchange.py is one call, gathering.py and
inbox.py bring its messages, reply_blocks.py writes what stands around the answer; desk.py takes each call through the
gate to its method. TABLE names the services, one module each with `SERVICES`; v2.py is the first. The codecs
(wire.py, messages.py, infer_head.py, infer_request.py, infer_response.py) know no connection.
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
