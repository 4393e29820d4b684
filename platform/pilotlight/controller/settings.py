"""Settings of the controller, read once by `platformctl controller`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """What is reconciled, and how. `kinds` are some of SERVICE_KINDS."""

    kinds: tuple[tuple[str, str], ...]  # apiVersion, kind
    namespaces: tuple[str, ...] = ()  # empty: all
    capabilities: Mapping[str, Any] = field(default_factory=dict)  # instead of those that are discovered
    resync_s: float = 600.0
    workers: int = 8
    lease_namespace: str = "pilotlight-system"
    liveness: str = ""  # URL that answers probes; empty: none
    webhook_port: int = 0  # of the admission webhook; 0: none
    webhook_cert: str = ""
    webhook_key: str = ""
