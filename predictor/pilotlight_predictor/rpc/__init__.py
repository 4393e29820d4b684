"""gRPC server on its own port, for the same models as the HTTP protocols.

A connection opens calls, a call reads messages, and the dispatcher admits each call and runs its method. TABLE lists
the services, one module each with `SERVICES`. The codecs are independent of connections.
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
    """Import and return the services of TABLE."""
    return tuple(service for name in TABLE for service in import_module(name).SERVICES)
