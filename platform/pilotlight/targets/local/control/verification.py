"""Verification of a revision by its first answers, for models that could not be warmed up before they were ready. Pure.

A predictor's /status says whether its models have answered a warm-up or a request, and how often they have failed
before (docs/concepts/predictor.md). The
reconciler reads it once after the start, and after requests while it is unverified.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pilotlight.targets.local.store.schema import Verification

Json = Any
FIRST_ANSWERS: Final = 5  # all of them 500: the revision does not work


def verification(before: Verification, statuses: Iterable[Mapping[str, Json]]) -> Verification:
    """Return the verification of a revision from the last /status of its ready replicas.

    A single answer verifies it for good. Servers other than ours say nothing: they stay unknown.
    """
    known = [status for status in statuses if status.get("state") == "ready" and "verified" in status]
    if before == "verified" or any(status["verified"] for status in known):
        return "verified"
    if not known or before == "failing":
        return before
    failures = sum(int(status.get("unverified_failures") or 0) for status in known)
    return "failing" if failures >= FIRST_ANSWERS else "unverified"


def unverified_message(warmup_failure: str) -> str:
    """Return why a revision is unverified, of a model that declares inputs for zeros of them, and what verifies it."""
    why = f"rejected zeros ({warmup_failure})" if warmup_failure else "has not answered yet"
    return f"its model {why}: send a request, or add example.json beside it"


def failure_reason(revision: str, last_error: str) -> str:
    return f"the first {FIRST_ANSWERS} responses of {revision} were all 500" + (f": {last_error}" if last_error else "")
