"""What whoever we are may do on the cluster: a lookup without the right to it finds nothing; which rights are lacking.

offers.py, preflight.py and `doctor` look at much that an ordinary user may not see; none of them fails by it.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from pilotlight.targets.kubernetes.cluster import AT_ONCE, Cluster, Kind
from pilotlight.targets.kubernetes.connection import Refused

T = TypeVar("T")
U = TypeVar("U")
FORBIDDEN: Final = 403
VERBS: Final = ("create", "patch", "delete")  # server-side apply needs the first two, the next release the third


def allowed(look: Callable[[], T], otherwise: U) -> T | U:
    """What the lookup finds; `otherwise` where we have no right to it."""
    try:
        return look()
    except Refused as refused:
        if refused.code != FORBIDDEN:
            raise
        return otherwise


def lacking(
    cluster: Cluster, wanted: Iterable[tuple[Kind, str]], verbs: Iterable[str] = VERBS
) -> list[tuple[Kind, str, tuple[str, ...]]]:
    """Of kinds and namespaces those with verbs that we have no right to."""
    asked = [(kind, namespace, verb) for kind, namespace in wanted for verb in verbs]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda each: cluster.may(each[2], each[0], each[1]), asked))
    found: dict[tuple[Kind, str], tuple[str, ...]] = {}
    for (kind, namespace, verb), may in zip(asked, answers, strict=True):
        if not may:
            found[kind, namespace] = (*found.get((kind, namespace), ()), verb)
    return [(kind, namespace, denied) for (kind, namespace), denied in found.items()]
