"""The control plane: one InferenceService document becomes running replicas, on one machine or on Kubernetes.

Names of the Python SDK (docs/how-to/python.md) are imported with their first use: predictors import this package too.
"""

TYPE_CHECKING = False  # typing is not imported, which costs milliseconds

if TYPE_CHECKING:
    from pilotlight.client import AsyncClient as AsyncClient
    from pilotlight.client import Client as Client
    from pilotlight.client import ColdStartTimeout as ColdStartTimeout
    from pilotlight.client import Completion as Completion
    from pilotlight.client import ConnectionFailed as ConnectionFailed
    from pilotlight.client import DeadlineExceeded as DeadlineExceeded
    from pilotlight.client import InferResult as InferResult
    from pilotlight.client import InvalidInput as InvalidInput
    from pilotlight.client import RankedDocument as RankedDocument
    from pilotlight.client import ResponseError as ResponseError
    from pilotlight.errors import Conflict as Conflict
    from pilotlight.errors import NotFound as NotFound
    from pilotlight.errors import PlatformError as PlatformError
    from pilotlight.errors import RolledBack as RolledBack
    from pilotlight.errors import TimedOut as TimedOut
    from pilotlight.errors import Unauthorized as Unauthorized
    from pilotlight.errors import UsageError as UsageError
    from pilotlight.sdk.local_predictor import test as test
    from pilotlight.sdk.model import model as model
    from pilotlight.sdk.verbs import Service as Service
    from pilotlight.sdk.verbs import abort as abort
    from pilotlight.sdk.verbs import canary as canary
    from pilotlight.sdk.verbs import delete as delete
    from pilotlight.sdk.verbs import deploy as deploy
    from pilotlight.sdk.verbs import promote as promote
    from pilotlight.sdk.verbs import rollback as rollback
    from pilotlight.sdk.verbs import scale as scale
    from pilotlight.sdk.verbs import services as services
    from pilotlight.sdk.verbs import status as status
    from pilotlight.sdk.verbs import traffic as traffic

__version__ = "0.1.0"

_MODULES = {
    "client": (
        "AsyncClient", "Client", "ColdStartTimeout", "Completion", "ConnectionFailed", "DeadlineExceeded",
        "InferResult", "InvalidInput", "RankedDocument", "ResponseError",
    ),
    "errors": ("Conflict", "NotFound", "PlatformError", "RolledBack", "TimedOut", "Unauthorized", "UsageError"),
    "sdk.local_predictor": ("test",),
    "sdk.model": ("model",),
    "sdk.verbs": (
        "Service", "abort", "canary", "delete", "deploy", "promote", "rollback", "scale", "services", "status",
        "traffic",
    ),
}  # fmt: skip
__all__ = ["__version__", *(name for names in _MODULES.values() for name in names)]


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            from importlib import import_module

            value = globals()[name] = getattr(import_module(f"pilotlight.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
