"""Start of a judged canary: plan, check before any change, deploy, record.

Used by `canary start` and by every `deploy` of a document that declares a canary or replaces a running one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pilotlight import history, releasing
from pilotlight.errors import NotFound, PlatformError, UsageError
from platformctl import canaries, documents, output, rollout, views

if TYPE_CHECKING:
    from pilotlight.canary.block import CanaryPolicy
    from pilotlight.canary.model import Canary
    from pilotlight.spec.problems import Problem
    from pilotlight.targets.target import Key, Release, Target


@dataclass(frozen=True, slots=True)
class CheckedCanary:
    """The planned first release of a canary, and the revisions it compares."""

    prepared: releasing.PreparedRelease
    warnings: "Sequence[Problem]"
    new_revision: str
    stable_revision: str


@dataclass(frozen=True, slots=True)
class CanaryRequest:
    """A canary to start: the release request of one service, and its policy."""

    release_request: releasing.ReleaseRequest
    policy: "CanaryPolicy"
    strict: bool = False

    @property
    def key(self) -> "Key":
        (service,) = self.release_request.documents.services
        return service.namespace, service.name

    def document(self) -> str:
        (service,) = self.release_request.documents.services
        return history.document_without_percent(service, self.release_request.capabilities)

    def check(self, target: "Target", stable: "Release") -> "CheckedCanary":
        """Plan the first release; raises NotFound if the document would not create a new revision."""
        from pilotlight.canary.looking import revision_names

        (prepared,), warnings = releasing.prepare(self.at_zero_percent(), target)
        return CheckedCanary(prepared, warnings, *revision_names(prepared.release, stable))

    def at_zero_percent(self) -> releasing.ReleaseRequest:
        """Return the request without traffic: the first step follows once the revision has passed its probes."""
        documents = history.with_canary_percent(self.release_request.documents, 0, judged=True)
        return replace(self.release_request, documents=documents, note="canary 0 %")


def run(request: CanaryRequest, target: "Target", apply_options: rollout.ApplyOptions) -> None:
    """Start the canary and follow it with --wait. A dry run ends with the plan of its first release."""
    if apply_options.dry_run:
        rollout.run(request.at_zero_percent(), target, apply_options, strict=request.strict)
        return
    ticker, before = output.ProgressLog(), canaries.running_canary(target, request.key)
    canary = start(request, target, ticker, show_diff=apply_options.diff)
    if before is not None and before.revision != canary.revision:
        output.note(f"took the place of the canary that ran: {before.revision}")
    if apply_options.wait:
        ended = canaries.follow(target, request.key, ticker, apply_options.timeout, wait_through_pauses=False)
        ticker.log(ended.phase, ended.revision)
    else:
        output.note(canaries.describe_unattended(target, request.key))
    views.show([target.status(request.key)], one=False, default="url")


def required_policy(target: "Target", request: releasing.ReleaseRequest) -> "CanaryPolicy | None":
    """Return the policy that a deploy of one document must pass; None if it is new or creates no new revision.

    The document's own policy wins over that of a running canary which the deploy replaces.
    """
    from pilotlight.canary.block import policy_from_annotations

    (service,) = request.documents.services
    key = (service.namespace, service.name)
    before = canaries.running_canary(target, key)
    policy = policy_from_annotations(service.annotations) or (before.policy if before else None)
    if policy is None or not releasing.generation(target, key):
        return None
    stable = history.stable_release(history.releases(target, key))
    try:
        CanaryRequest(request, policy).check(target, stable)
    except NotFound:
        return None
    return policy


def start(request: CanaryRequest, target: "Target", ticker: output.ProgressLog, *, show_diff: bool = False) -> "Canary":
    """Deploy the canary at 0 % and record it; the canary runner does the rest.

    A document equal to the running canary's is not deployed again: only its policy is replaced.
    """
    from pilotlight.canary.acting import apply_release
    from pilotlight.canary.runner import start_canary

    releases = history.releases(target, request.key)
    stable = history.stable_release(releases)
    checked = request.check(target, stable)
    documents.warn(checked.warnings, request.strict)
    _try_queries(target, request, checked)
    if show_diff:
        rollout.note_changes([checked.prepared])
    if not (
        canaries.running_canary(target, request.key) and request.document() == history.released_document(releases[0])
    ):
        apply_release(target, request.at_zero_percent())
    release = history.releases(target, request.key)[0]
    canary = start_canary(target, release, stable, request.policy, datetime.now(UTC))
    ticker.log("Applied", f"{canary.revision} (generation {release.generation})")
    return canary


def _try_queries(target: "Target", request: CanaryRequest, checked: CheckedCanary) -> None:
    """Run custom queries before any change; raises UsageError if the target can never answer one."""
    from pilotlight.canary import queries

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
                output.note(f"promql {check.name} cannot be asked yet: {error}")
