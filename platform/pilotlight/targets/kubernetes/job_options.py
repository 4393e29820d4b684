"""Options of microservices on a cluster, and what they decide before the start: the wait for an address, GPUs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pilotlight.contract import is_predictor_image
from pilotlight.errors import UsageError
from pilotlight.targets.options import Option

if TYPE_CHECKING:
    from pilotlight.targets.kubernetes.client import Cluster

ENV_IN_CLUSTER: Final = "KUBERNETES_SERVICE_HOST"
CLAIM_PATH: Final = "/models"
OPTIONS: Final = (
    Option("namespace", "Kubernetes namespace", variables=("PILOTLIGHT_NAMESPACE",), default="default"),
    Option("image_pull_secret", "a Secret for the image's registry; nvcr.io needs one", needed_for="nvcr.io/"),
    Option("context", "kubeconfig context; default: the current one", variables=("PILOTLIGHT_CONTEXT",)),
    Option("volume_claim", f"a PersistentVolumeClaim with models, mounted at {CLAIM_PATH}"),
    Option("cpu", "resource request, such as 2 or 500m"),
    Option("memory", "resource request and limit, such as 8Gi"),
    Option(
        "address_wait",
        "seconds to wait for a load balancer address; 30, inside a cluster 0",
        variables=("PILOTLIGHT_ADDRESS_WAIT",),
    ),
)


def address_wait_s(options: Mapping[str, str], environ: Mapping[str, str]) -> float:
    text = options.get("address_wait") or ("0" if environ.get(ENV_IN_CLUSTER) else "30")
    try:
        return max(0.0, float(text))
    except ValueError:
        raise UsageError(f"address_wait = {text}, must be a number of seconds") from None


def gpus(image: str, cluster: "Cluster") -> int | None:
    """Return 0 for our predictor if no node has GPUs; None: as many as it wants, which the cluster checks."""
    from pilotlight.targets.kubernetes.preflight import has_gpus

    return None if not is_predictor_image(image) or has_gpus(cluster) else 0
