"""Microservices on a cluster: services of the target kubernetes. Implements `Platform`.

The entry stores the kubeconfig context as `instance_id`, since the current one may change. A microservice of the API
has no address outside of the cluster, since clients go through the API.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from pilotlight import contract
from pilotlight.errors import UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.platforms.service_document import KUBERNETES, MODELS, service_name
from pilotlight.microservices.platforms.target_service import NAMESPACE, TargetService
from pilotlight.microservices.registry.records import Entry, Job
from pilotlight.targets.kubernetes.client import current_context
from pilotlight.targets.kubernetes.preflight import has_gpus
from pilotlight.targets.kubernetes.target import KubernetesTarget
from pilotlight.targets.options import Option
from pilotlight.targets.target import Key, Target

GUARDED: Final = "nvcr.io/"
OPTIONS: Final = (
    Option(NAMESPACE.name, NAMESPACE.help, variables=("PILOTLIGHT_NAMESPACE",), default="default"),
    Option("image_pull_secret", "a Secret for the image's registry; nvcr.io needs one", needed_for=GUARDED),
    Option("context", "of the kubeconfig; else its current one", variables=("PILOTLIGHT_CONTEXT",)),
    Option("volume_claim", f"a PersistentVolumeClaim with models, mounted at {MODELS}"),
    Option("cpu", "what it asks for, such as 2 or 500m"),
    Option("memory", "what it asks for and may use, such as 8Gi"),
    Option(
        "address_wait",
        "seconds for a load balancer to give an address; 30, and inside a cluster 0",
        variables=("PILOTLIGHT_ADDRESS_WAIT",),
    ),
)


def make(environ: Mapping[str, str]) -> "ClusterService":
    return ClusterService(environ)


class ClusterService(TargetService):
    """Microservices of clusters. `connect` takes a kubeconfig context, empty: the current one; connections are kept."""

    def __init__(
        self, environ: Mapping[str, str], connect: Callable[[str], KubernetesTarget] = KubernetesTarget.connect
    ) -> None:
        super().__init__(KUBERNETES, environ)
        self.options, self._open = OPTIONS, connect
        self._clusters: dict[str, KubernetesTarget] = {}

    def preflight(self, job: Job) -> None:
        """Check the options; the target checks all else before it writes anything."""
        self._address_wait(self._resolved(job))

    def _connect(
        self, options: Mapping[str, str] | None = None, *, start: bool = True, context: str | None = ""
    ) -> KubernetesTarget:
        if (name := context or "") not in self._clusters:
            self._clusters[name] = self._open(name)
        return self._clusters[name]

    def _has_gpus(self, job: Job) -> bool:
        """Return whether it asks for GPUs; the predictor runs without them too."""
        own = contract.is_predictor_image(job.image)
        return not own or has_gpus(self._connect(context=job.options.get("context")).cluster)

    def _entry(self, job: Job, target: Target, key: Key) -> Entry:
        """Return the entry, with the address of the load balancer, else with a name that only the cluster knows."""
        until = time.monotonic() + self._address_wait(job)
        while not (url := (status := target.status(key)).urls.get("load_balancer")) and time.monotonic() < until:
            time.sleep(target.poll_s)
        return Entry(
            KUBERNETES, job.network_arch, url or status.url, utc_now(zone="+00:00"), None,
            service_name(job.id), job.options.get("context") or current_context() or None, key[0],
        )  # fmt: skip

    def _address_wait(self, job: Job) -> float:
        """Return the seconds to wait for an address."""
        if job.closed:
            return 0.0
        text = job.options.get("address_wait") or ("0" if self._environ.get("KUBERNETES_SERVICE_HOST") else "30")
        try:
            return max(0.0, float(text))
        except ValueError:
            raise UsageError(f"address_wait = {text}, must be a number of seconds") from None
