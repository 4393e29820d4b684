"""gRPC server on its own port, for the same models as the HTTP protocols.

A connection opens calls, a call reads messages, and the dispatcher admits each call and runs its method. TABLE lists
the services, one module each with `SERVICES`. The codecs are independent of connections.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pilotlight_predictor.frontends.grpc.dispatcher import Service

TABLE: Final = (
    "pilotlight_predictor.protocols.v2.grpc.service",
    "pilotlight_predictor.protocols.trtis.grpc",
    "pilotlight_predictor.protocols.plain_predict.grpc",
    "pilotlight_predictor.frontends.grpc.health",
    "pilotlight_predictor.frontends.grpc.reflection",
)


def services() -> "tuple[Service, ...]":
    """Import and return the services of TABLE."""
    return tuple(service for name in TABLE for service in import_module(name).SERVICES)
