"""Documents to release request, then plan, show, apply and follow it: shared by `deploy`, `rollback` and `canary`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.release import apply as release_apply
from pilotlight.release import history
from pilotlight.release.apply import Apply, PreparedRelease, ReleaseRequest
from pilotlight.release.document_changes import field_lines, service_changes
from pilotlight.wire.machine import user_name
from platformctl import output, targets
from platformctl.options import ApplyOptions, DocumentOptions, note_unreachable, warn
from platformctl.services import status_views, wait_ready
from platformctl.services.model_pins import check_stored, resolve

if TYPE_CHECKING:
    from pilotlight.k8s.manifest import Change
    from pilotlight.release.model_pins import PinMode
    from pilotlight.targets.target import ServiceStatus, Target

FORMATS: Final = ("url", "json", "yaml", "table", "wide", "name")


def request_from_files(
    document_options: DocumentOptions, target: "Target | None", mode: "PinMode" = "snapshot", *, beside: bool = False
) -> ReleaseRequest:
    """Read and check all documents; the request holds the selected services, pinned to the content of their models.

    `beside`: it runs beside the service's present revision, with the target options of that one.
    """
    from pilotlight.release.model_pins import without_pins

    read = document_options.read(target)
    selected = without_pins(replace(read, services=tuple(document_options.select(read.services))))
    released = None
    if beside and target is not None and len(selected.services) == 1:
        (service,) = selected.services
        release = history.releases(target, (service.namespace, service.name))[0]
        released = release_apply.read_release(release)[1].target_options
    capabilities = document_options.target_capabilities(target, released)
    release_apply.check_paths_reachable(selected.services, target)
    embedded = document_options.target_name in targets.EMBEDDED
    if target is None and not embedded:
        note_unreachable(selected.services)
    return ReleaseRequest(resolve(selected, capabilities, mode, local=embedded), capabilities, by=user_name())


def request_from_target(
    document_options: DocumentOptions, target: "Target | None", mode: "PinMode" = "snapshot"
) -> ReleaseRequest:
    """Return a request from the stored document of one service, with its pins, changed by --set."""
    if len(document_options.names) > 1:
        raise UsageError("without -f only one service can be deployed at a time")
    assert target is not None
    key = targets.service_key(document_options.names[0], document_options.namespace)
    release = history.releases(target, key)[0]
    documents, capabilities = release_apply.read_release(release, document_options.sets)
    release_apply.check_paths_reachable(documents.services, target)
    if target.embedded:
        check_stored(documents, mode, document_options.namespace)
    pinned = resolve(documents, capabilities, mode, local=target.embedded)
    return ReleaseRequest(pinned, capabilities, by=user_name())


def run(
    request: ReleaseRequest,
    target: "Target | None",
    apply_options: ApplyOptions,
    *,
    strict: bool = False,
    apply: Apply = release_apply.apply,
) -> None:
    """Plan everything, then apply it. Without a target it stops after the plan."""
    ticker, request = output.ProgressLog(), replace(request, by=user_name())
    prepared, warnings = release_apply.prepare(request, target)
    warn(warnings, strict)
    for one in prepared:
        ticker.log("Validated", f"{'/'.join(one.key)}: {one.plan.mode}, {len(one.manifests)} objects")
        for sentence in wait_ready.override_notes(one.key, one.overrides):
            output.note(sentence)
        if target is not None:
            _warn_of_rolled_back_canary(one, target)
    if apply_options.dry_run or target is None:
        if apply_options.dry_run == "server" and target is not None:
            apply(request, prepared, target, dry_run=True)
            ticker.log("Checked", f"by {target.name}; nothing was changed")
        _show_plan(prepared, target, apply_options.diff)
        return
    if apply_options.diff:
        note_changes(prepared, target)
    if len(prepared) > 1:
        _check_all(request, prepared, target, apply)
    applied = apply(request, prepared, target)
    if request.reset_traffic:
        applied = [(one, _clear_traffic_overrides(target, status)) for one, status in applied]
    status_views.show(_follow(applied, target, apply_options, ticker), one=False, default="url")


def _warn_of_rolled_back_canary(one: PreparedRelease, target: "Target") -> None:
    """Print a warning if the service's last canary was a revision of this release and was rolled back."""
    from pilotlight.canaries.stored_history import decode_history

    try:
        last = decode_history(target.canary(one.key)).current
    except PlatformError:  # a new service, or a state of another version
        return
    if last and last.phase == "RolledBack" and last.revision in {work.revision for work in one.plan.workloads}:
        output.note(f"warning: {last.revision}: its canary was rolled back at {last.ended_at}: {last.reason}")


def _check_all(request: ReleaseRequest, prepared: Sequence[PreparedRelease], target: "Target", apply: Apply) -> None:
    """Dry-run every service first and raise all refusals in one PlatformError, before any is deployed."""
    refused = []
    for one in prepared:
        try:
            apply(request, [one], target, dry_run=True)
        except PlatformError as error:
            refused.append((one.plan.name, error))
    if refused:
        lines = [f"  {name}: {error}" for name, error in refused]
        hints = dict.fromkeys(error.hint for _, error in refused if error.hint)
        message = f"{len(refused)} of {len(prepared)} services cannot be deployed; nothing was done"
        raise PlatformError("\n".join([message, *lines]), "; ".join(hints))


def _clear_traffic_overrides(target: "Target", status: "ServiceStatus") -> "ServiceStatus":
    """Remove manual traffic splits, which would override those of the release, once it is applied."""
    written = {name: {"traffic": each["traffic"]} for name, each in status.overrides.items() if each.get("traffic")}
    for workload, shares in written.items():
        output.note(f"removed the override: {workload} {status_views.format_overrides(shares)}")
    return target.traffic((status.namespace, status.name), None) if written else status


def _follow(
    applied: "Sequence[tuple[PreparedRelease, ServiceStatus]]",
    target: "Target",
    apply_options: ApplyOptions,
    ticker: output.ProgressLog,
) -> "list[ServiceStatus]":
    """Return the final statuses; without --wait those that apply returned."""
    expected = [
        wait_ready.Expected(one.key, status.generation, tuple(work.revision for work in one.plan.workloads))
        for one, status in applied
    ]
    for sentence in dict.fromkeys(sentence for _, status in applied for sentence in status.warnings):
        output.note(sentence)
    for (one, status), each in zip(applied, expected, strict=True):
        change = "unchanged" if status.generation == one.release.expected else f"generation {status.generation}"
        ticker.log("Applied", f"{', '.join(each.revisions) or each.key[1]} ({change})")
    try:
        if apply_options.wait:
            return wait_ready.wait(target, expected, apply_options.timeout, ticker)
        return [status for _, status in applied]
    except KeyboardInterrupt:
        names = " ".join("/".join(one.key) for one, _ in applied)
        output.note(f"\nthe deploy continues: platformctl status {names}")
        raise
    finally:
        ticker.close()


def note_changes(prepared: Sequence[PreparedRelease], target: "Target | None") -> None:
    """Print the changed fields of documents and the differences to the live manifests on stderr."""
    for line in [*field_lines(service_changes(prepared, target)), *_changed_lines(_changes(prepared))]:
        output.note(line)


def _changes(prepared: Sequence[PreparedRelease]) -> "list[Change]":
    from pilotlight.k8s.manifest import diff

    # Secrets are never read back from a cluster, so nothing can be said about them.
    sides = [
        [[each for each in manifests if each.kind != "Secret"] for manifests in (one.live_manifests, one.manifests)]
        for one in prepared
    ]
    changes = [change for live, wanted in sides for change in diff(live, wanted)]
    if not changes:
        output.note("no difference")
    return changes


def _changed_lines(changes: "Sequence[Change]") -> list[str]:
    return [output.diff_coloured(line) for change in changes for line in change.lines]


def _show_plan(prepared: Sequence[PreparedRelease], target: "Target | None", show_diff: bool) -> None:
    """Print the plan; with --diff the differences."""
    services = [
        {
            "namespace": one.plan.namespace, "name": one.plan.name, "mode": one.plan.mode,
            "objects": len(one.manifests), "revisions": [work.revision for work in one.plan.workloads],
        }
        for one in prepared
    ]  # fmt: skip
    if show_diff:
        changes = _changes(prepared)
        output.data(
            {"services": services, "changes": [status_views.change_document(each, {}) for each in changes]},
            [*field_lines(service_changes(prepared, target)), *_changed_lines(changes)],
        )
        return
    names = [f"{'/'.join(one.key)} {work.revision}" for one in prepared for work in one.plan.workloads]
    output.data({"services": services}, names)
