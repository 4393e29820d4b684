"""Is there such a service? Asked where silence could as well mean that its name was mistyped: logs, events."""

from pilotlight.errors import NotFound
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.target import Key


def require(cluster: Cluster, key: Key) -> None:
    """Raises NotFound where no workload of the service is there."""
    if not cluster.lists(kinds.WORKLOADS, key[0], kinds.selector(key[1])):
        raise NotFound(f"there is no service {'/'.join(key)}", "platformctl list shows those that there are")
