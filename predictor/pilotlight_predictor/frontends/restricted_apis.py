"""Groups of calls that need a key in a header (`--http-restricted-api` and `--grpc-restricted-protocol`)."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pilotlight_predictor.config.value_types import RestrictedGroups
from pilotlight_predictor.errors import Restricted
from pilotlight_predictor.frontends.auth import Action

GRPC_PREFIX: Final = "triton-grpc-protocol-"  # of the metadata key, as Triton's clients send it
# Parts of routes and of method names. Longer ones first: the log settings of a model are no trace settings.
_GROUPS: Final = (
    ("sharedmemory", "shared-memory"), ("trace", "trace"), ("/logging", "logging"), ("logsettings", "logging"),
    ("/stats", "statistics"), ("statistics", "statistics"), ("config", "model-config"),
)  # fmt: skip


class Restriction(NamedTuple):
    """Header and value that calls of a group need. `kind`: API or protocol, as clients know the group."""

    header: str
    value: str
    kind: str

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise Restricted."""
        from hmac import compare_digest  # imports OpenSSL, which no cold start should wait for

        text, value = headers.get(self.header.lower()), self.value.encode(errors="surrogateescape")
        if text is None or not compare_digest(text.encode("latin-1", "replace"), value):  # headers are latin-1 text
            raise Restricted(f"This {self.kind} is restricted, expecting header '{self.header}'")


class RestrictedApis:
    """Restrictions of one transport."""

    def __init__(self, groups: Iterable[RestrictedGroups], kind: str, prefix: str = "") -> None:
        self._of_group = {
            name: Restriction(prefix + header, value, kind) for names, header, value in groups for name in names
        }

    def of(self, action: Action, route: str) -> Restriction | None:
        """Return the restriction of a call; `route`: the pattern of a path, or the path of a method."""
        return self._of_group.get(api_group(action, route)) if self._of_group else None


def api_group(action: Action, route: str) -> str:
    """Return the group of a call, one of RESTRICTABLE; empty for metrics, which have no key."""
    if action in _BY_ACTION:
        return _BY_ACTION[action]
    route = route.lower()
    found = next((group for part, group in _GROUPS if part in route), "")
    return found or ("model-repository" if action is Action.ADMIN else "metadata")


_BY_ACTION: Final = {Action.INFER: "inference", Action.HEALTH: "health", Action.METRICS: ""}
