"""Existence check for verbs whose empty output could mean a mistyped name: logs, events."""

from pilotlight.errors import NotFound
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.target import Key


def require_service(cluster: Cluster, key: Key) -> None:
    """Raise NotFound if the service has no workload."""
    if not cluster.list_kinds(kinds.WORKLOADS, key[0], kinds.selector(key[1])):
        raise NotFound(f"there is no service {'/'.join(key)}", "platformctl list shows those that there are")
