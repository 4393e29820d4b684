"""The start of a canary that judges itself: planned, checked before anything is changed, deployed, kept.

`canary start` comes here, and every `deploy` of a document that asks for a canary or takes the place of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pilotlight import history, releasing
from pilotlight.errors import NotFound, PlatformError, UsageError
from platformctl import canaries, documents, output, rollout, views

if TYPE_CHECKING:
    from pilotlight.canary.model import Canary, Policy
    from pilotlight.spec.problems import Problem
    from pilotlight.targets.target import Key, Release, Target


@dataclass(frozen=True, slots=True)
class Checked:
    """The first release of a canary as it was planned, and the revisions that it is about."""

    prepared: releasing.Prepared
    warnings: "Sequence[Problem]"
    fresh: str
    stable: str


@dataclass(frozen=True, slots=True)
class Start:
    """One service's canary to be started: its document as it was given, and what it must prove."""

    wanted: releasing.Wanted
    policy: "Policy"
    strict: bool = False

    @property
    def key(self) -> "Key":
        (service,) = self.wanted.documents.services
        return service.namespace, service.name

    def document(self) -> str:
        (service,) = self.wanted.documents.services
        return history.document(service, self.wanted.capabilities)

    def check(self, target: "Target", stable: "Release") -> "Checked":
        """Raises NotFound, before anything is changed, where the document would make no other pods."""
        from pilotlight.canary.looking import revision_names

        (prepared,), warnings = releasing.prepare(self.shared(), target)
        return Checked(prepared, warnings, *revision_names(prepared.release, stable))

    def shared(self) -> releasing.Wanted:
        """Without requests at first: it gets some once it has answered."""
        documents = history.with_share(self.wanted.documents, 0, judged=True)
        return replace(self.wanted, documents=documents, note="canary 0 %")


def judged(start_: Start, where: "Target", how: rollout.How) -> None:
    """Started, and with --wait followed to its end. What only looks ends with the plan of its first release."""
    if how.dry_run:
        rollout.run(start_.shared(), where, how, strict=start_.strict)
        return
    ticker, before = output.Ticker(), canaries.running(where, start_.key)
    canary = start(start_, where, ticker, differ=how.differ)
    if before is not None and before.revision != canary.revision:
        output.note(f"took the place of the canary that ran: {before.revision}")
    if how.wait:
        ended = canaries.follow(where, start_.key, ticker, how.timeout, patient=False)
        ticker.say(ended.phase, ended.revision)
    else:
        output.note(canaries.left(where, start_.key))
    views.show([where.status(start_.key)], one=False, default="url")


def asked_for(target: "Target", alone: releasing.Wanted) -> "Policy | None":
    """What a deploy of one document must prove: by its own words, or by those of the canary that it takes the place
    of. None: nothing, as it is new, or makes the pods that serve already."""
    from pilotlight.canary.block import annotated

    (service,) = alone.documents.services
    key = (service.namespace, service.name)
    before = canaries.running(target, key)
    policy = annotated(service.annotations) or (before.policy if before else None)
    if policy is None or not releasing.generation(target, key):
        return None
    stable = history.stable(history.releases(target, key))
    try:
        Start(alone, policy).check(target, stable)
    except NotFound:
        return None
    return policy


def start(start_: Start, target: "Target", ticker: output.Ticker, *, differ: bool = False) -> "Canary":
    """Deployed beside what serves, and kept; from then on whoever looks after canaries does the rest. The document of
    the canary that runs goes on where it stands, by what it must prove from now on."""
    from pilotlight.canary.acting import released
    from pilotlight.canary.runner import begin

    found = history.releases(target, start_.key)
    stable = history.stable(found)
    checked = start_.check(target, stable)
    documents.warn(checked.warnings, start_.strict)
    _try_queries(target, start_, checked)
    if differ:
        rollout.note_changes([checked.prepared])
    if not (canaries.running(target, start_.key) and start_.document() == history.document_of(found[0])):
        released(target, start_.shared())
    fresh = history.releases(target, start_.key)[0]
    canary = begin(target, fresh, stable, start_.policy, datetime.now(UTC))
    ticker.say("Applied", f"{canary.revision} (generation {fresh.generation})")
    return canary


def _try_queries(target: "Target", start_: Start, checked: Checked) -> None:
    """One that the target can never answer is refused before anything is changed; one without an answer yet is not."""
    from pilotlight.canary import queries

    ours, theirs = queries.sides(*start_.key, checked.fresh, checked.stable, start_.policy, 0.0)
    asked = queries.asked(start_.policy, ours, theirs.revision)
    for check in start_.policy.checks:
        if check.query:
            try:
                target.query(asked[check.name])
            except UsageError:
                raise
            except PlatformError as error:
                output.note(f"promql {check.name} cannot be asked yet: {error}")
