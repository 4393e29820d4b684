"""Audit records of deploys, deletes and overrides: the control process appends them to the gateway's audit log."""

from contextvars import ContextVar
from typing import Final

from pilotlight.targets.local.delayed_queue import log_and_continue
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import ServiceSpec
from pilotlight.wire.request_log.audit_log import AuditLog

# User that the client of the API names; it holds the platform's token, so it is believed.
CALLER: Final[ContextVar[str]] = ContextVar("caller", default="")


SHOWN: Final = 1024  # characters of a note


class ControlAudit:
    """Records of one platform, each on disk before the action is answered."""

    def __init__(self, home: Home) -> None:
        self._log = AuditLog(home.audit)

    def record(self, action: str, spec: ServiceSpec, detail: str, caller: str = "") -> None:
        """Append a record; one that cannot be written is logged, and does not stop the action."""
        fields = {
            "event": action, "caller": CALLER.get() or caller, "namespace": spec.namespace, "service": spec.name,
            "revision": ",".join(workload.revision.name for workload in spec.workloads),
            "digest": ",".join(filter(None, (each.revision.container.model_digest for each in spec.workloads))),
            "detail": detail[:SHOWN],
        }  # fmt: skip
        with log_and_continue(f"the audit record of {action} {spec.namespace}/{spec.name}"):
            self._log.append(fields, sync=True)
