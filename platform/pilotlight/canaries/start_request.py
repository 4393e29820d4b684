"""Start of a judged canary: plan, checks before any change, deploy at 0 %, record. The runner does the rest.

Used by `platformctl canary start`, by every deploy of a document that declares a canary or replaces a running one, and
by the controller of a cluster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pilotlight.canaries import stored_history
from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.release import apply, history

if TYPE_CHECKING:
    from pilotlight.canaries.canary_state import Canary
    from pilotlight.spec.canary_policy import CanaryPolicy
    from pilotlight.spec.problems import Problem
    from pilotlight.targets.target import Key, Release, Target


@dataclass(frozen=True, slots=True)
class CheckedCanary:
    """The planned first release of a canary, and the revisions it compares."""

    prepared: apply.PreparedRelease
    warnings: "Sequence[Problem]"
    new_revision: str
    stable_revision: str


@dataclass(frozen=True, slots=True)
class CanaryRequest:
    """A canary to start: the release request of one service, its policy, and its plan if it is checked already."""

    release_request: apply.ReleaseRequest
    policy: "CanaryPolicy"
    strict: bool = False
    checked: CheckedCanary | None = None

    @property
    def key(self) -> "Key":
        (service,) = self.release_request.documents.services
        return service.namespace, service.name

    def policy_with_example(self) -> "CanaryPolicy":
        """Return the policy; its probes send the model's example unless they have one of their own."""
        from pilotlight.spec.canary_policy import with_example

        (service,) = self.release_request.documents.services
        return with_example(self.policy, service.example)

    def document(self) -> str:
        (service,) = self.release_request.documents.services
        return history.comparable_document(service, self.release_request.capabilities)

    def check(self, target: "Target", stable: "Release") -> "CheckedCanary":
        """Plan the first release; raises NotFound if the document would not create a new revision."""
        from pilotlight.canaries.observation import revision_names

        (prepared,), warnings = apply.prepare(self.at_zero_percent(), target)
        return CheckedCanary(prepared, warnings, *revision_names(prepared.release, stable))

    def at_zero_percent(self) -> apply.ReleaseRequest:
        """Return the request without traffic: the first step follows once the revision has passed its probes."""
        documents = history.with_canary_percent(self.release_request.documents, 0, judged=True)
        return replace(self.release_request, documents=documents, note="canary 0 %")


def running_canary(target: "Target", key: "Key") -> "Canary | None":
    """Return the canary in progress; None also if the service or its history does not exist."""
    try:
        return stored_history.running_canary(stored_history.decode_history(target.canary(key)))
    except NotFound:
        return None


def required_canary(target: "Target", request: apply.ReleaseRequest, strict: bool = False) -> CanaryRequest | None:
    """Return the canary that a deploy of one document must pass; None if it is new or creates no new revision.

    The document's own policy wins over that of a running canary which the deploy replaces.
    """
    from pilotlight.spec.canary_policy import policy_from_annotations

    (service,) = request.documents.services
    key = (service.namespace, service.name)
    before = running_canary(target, key)
    policy = policy_from_annotations(service.annotations) or (before.policy if before else None)
    if policy is None or not apply.generation(target, key):
        return None
    stable = history.stable_release(history.releases(target, key))
    canary = CanaryRequest(request, policy, strict)
    try:
        return replace(canary, checked=canary.check(target, stable))
    except NotFound:
        return None


def start(
    request: CanaryRequest, target: "Target", on_checked: Callable[[CheckedCanary], None], note: Callable[[str], None]
) -> "tuple[Canary, Release]":
    """Deploy the canary at 0 % and record it. `on_checked` gets the plan before any change, `note` remarks.

    A document equal to the running canary's is not deployed again: only its policy is replaced.
    """
    from pilotlight.canaries.runner import apply_release, start_canary
    from pilotlight.spec.canary_policy import COMPARED_METRICS

    releases = history.releases(target, request.key)
    stable = history.stable_release(releases)
    checked = request.checked or request.check(target, stable)
    on_checked(checked)
    policy, works = request.policy, checked.prepared.plan.workloads
    checks = (each.name for each in policy.checks if not each.query)
    names = dict.fromkeys([*(COMPARED_METRICS if policy.compare else ()), *checks])
    foreign = any(each.revision == checked.new_revision and not each.is_pilotlight for each in works)
    if names and foreign and not target.embedded:  # on a cluster nothing measures others' servers by revision
        problem = f"{', '.join(names)} of {checked.new_revision} will have no data: it is not Pilotlight's predictor"
        fix = "measure it with --promql, --max and --min-requests 0: docs/how-to/canary.md#engines"
        note(f"warning: {problem}; {fix}")
    _try_queries(target, request, checked, note)
    if not (running_canary(target, request.key) and request.document() == history.released_document(releases[0])):
        apply_release(target, request.at_zero_percent())
    release = history.releases(target, request.key)[0]
    return start_canary(target, release, stable, request.policy_with_example(), datetime.now(UTC)), release


def _try_queries(target: "Target", request: CanaryRequest, checked: CheckedCanary, note: Callable[[str], None]) -> None:
    """Run custom queries before any change; raises UsageError if the target can never answer one."""
    from pilotlight.canaries import queries

    ours, theirs = queries.metric_scopes(
        *request.key, checked.new_revision, checked.stable_revision, request.policy, 0.0
    )
    queries_by_check = queries.display_queries(request.policy, ours, theirs.revision)
    for check in request.policy.checks:
        if check.query:
            try:
                target.query(queries_by_check[check.name])
            except UsageError:
                raise
            except PlatformError as error:
                note(f"promql {check.name} cannot be queried yet: {error}")
