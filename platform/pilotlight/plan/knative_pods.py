"""What Knative's webhook refuses in a revision's pod is taken out here, each with a warning: better said than rejected.

Fields behind a feature flag stay and become requirements; these have no flag, or are only allowed one value.
"""

from collections.abc import Mapping
from typing import Any, Final

from pilotlight.plan.ledger import Ledger
from pilotlight.plan.subject import Subject
from pilotlight.pod_flags import KNATIVE_POD_FIELDS

Json = Any
REFUSED_IN_CONTAINERS: Final = frozenset(
    ("lifecycle", "stdin", "stdinOnce", "tty", "volumeDevices", "resizePolicy", "restartPolicy")
)
REFUSED_IN_CONTEXTS: Final = frozenset(("seLinuxOptions", "procMount", "windowsOptions", "appArmorProfile"))
# Knative's quick probing has no thresholds: they are refused where there is no period.
QUICK_PROBE_LEAVES_OUT: Final = frozenset(("periodSeconds", "failureThreshold", "timeoutSeconds"))


def fit_to_knative(
    subject: Subject, spec: Mapping[str, Json], port: Mapping[str, Json], ledger: Ledger
) -> dict[str, Json]:
    """The pod without what a Knative Service cannot have. `port` is the only one that requests come to."""
    refused = [field for field in spec if field not in KNATIVE_POD_FIELDS]
    if spec.get("automountServiceAccountToken"):
        refused.append("automountServiceAccountToken")
    for field in refused:
        ledger.warn("PL359", subject.path(field), "is refused by Knative and left out; use raw if it is needed")
    kept = {field: value for field, value in spec.items() if field not in refused}
    containers = [_container(subject, container, ledger) for container in spec["containers"]]
    return {**kept, "containers": _with_one_port(subject, containers, port, ledger)}


def _with_one_port(
    subject: Subject, containers: list[dict[str, Json]], port: Mapping[str, Json], ledger: Ledger
) -> list[dict[str, Json]]:
    """The first container that declares ports has the one that is asked; Knative refuses ports of any other."""
    asked, *others = (container for container in containers if container.get("ports"))
    for container in others:
        message = f"ports of {container['name']} are refused by Knative beside {asked['name']}'s and left out"
        ledger.warn("PL359", subject.path("containers"), message)
        del container["ports"]
    asked["ports"] = [dict(port)]
    return containers


def _container(subject: Subject, container: Mapping[str, Json], ledger: Ledger) -> dict[str, Json]:
    context = container.get("securityContext") or {}
    wrong = [field for field in container if field in REFUSED_IN_CONTAINERS]
    wrong_context = [
        field for field in context if field in REFUSED_IN_CONTEXTS or (field, context[field]) == _PRIVILEGED
    ]
    for field in (*wrong, *(f"securityContext.{name}" for name in wrong_context)):
        place = "runner" if subject.service.group == "ome" else "containers"
        message = f"{field} of {container['name']} is refused by Knative and left out; use raw if it is needed"
        ledger.warn("PL359", subject.path(place), message)
    kept = {field: value for field, value in container.items() if field not in wrong}
    if wrong_context:
        kept["securityContext"] = {key: value for key, value in context.items() if key not in wrong_context}
    return kept


_PRIVILEGED: Final = ("privileged", True)


def quick(probe: Mapping[str, Json]) -> dict[str, Json]:
    return {field: value for field, value in probe.items() if field not in QUICK_PROBE_LEAVES_OUT}
