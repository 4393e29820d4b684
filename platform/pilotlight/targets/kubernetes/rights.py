"""Permissions of this account: optional lookups, and missing permissions.

offers.py, preflight.py and `doctor` read much that an ordinary user may not; they must not fail without permission.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from pilotlight.targets.kubernetes.cluster import CONCURRENCY, Cluster, ResourceKind
from pilotlight.targets.kubernetes.connection import KubeApiError

T = TypeVar("T")
U = TypeVar("U")
FORBIDDEN: Final = 403
VERBS: Final = ("create", "patch", "delete")  # server-side apply needs the first two, pruning the third


def unless_forbidden(lookup: Callable[[], T], otherwise: U) -> T | U:
    """Return the result of the lookup; `otherwise` if it is forbidden."""
    try:
        return lookup()
    except KubeApiError as error:
        if error.code != FORBIDDEN:
            raise
        return otherwise


def missing_permissions(
    cluster: Cluster, wanted: Iterable[tuple[ResourceKind, str]], verbs: Iterable[str] = VERBS
) -> list[tuple[ResourceKind, str, tuple[str, ...]]]:
    """Return the kinds and namespaces with verbs that are not permitted."""
    checks = [(kind, namespace, verb) for kind, namespace in wanted for verb in verbs]
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        answers = list(pool.map(lambda each: cluster.is_allowed(each[2], each[0], each[1]), checks))
    denials: dict[tuple[ResourceKind, str], tuple[str, ...]] = {}
    for (kind, namespace, verb), allowed in zip(checks, answers, strict=True):
        if not allowed:
            denials[kind, namespace] = (*denials.get((kind, namespace), ()), verb)
    return [(kind, namespace, denied) for (kind, namespace), denied in denials.items()]
