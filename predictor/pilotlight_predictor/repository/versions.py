"""Selection of the versions to serve by the version policy. Pure."""

from collections.abc import Iterable

from pilotlight_predictor.repository.model_config import VersionPolicy


def choose_versions(policy: VersionPolicy, available: Iterable[int]) -> tuple[int, ...]:
    """Return the versions to serve, newest first."""
    newest_first = sorted(set(available), reverse=True)
    if policy.kind == "latest":
        return tuple(newest_first[: policy.num_versions])
    if policy.kind == "specific":
        return tuple(version for version in newest_first if version in policy.versions)
    return tuple(newest_first)
