"""Request log of a component: from KServe's `logger` and the annotation pilotlight.dev/request-log, and who writes it.

On targets with our gateway process that logs what the entry component gets, for any server. Elsewhere our predictor
logs what it gets itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from pilotlight.k8s import names, quantities
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.types import DecisionLog
from pilotlight.wire.request_log.settings import MAX_BYTES, LogSettings, check, encode

Json = Any
ANNOTATION: Final = f"metadata.annotations.{names.ANNOTATION_REQUEST_LOG}"
# Fields of `logger` that have no effect, with the reason.
IGNORED: Final = {
    "marshallerUrl": "records are CloudEvents as JSON lines",
    "storage.key": "credentials are those in the environment of the server that logs",
    "storage.parameters": "records are CloudEvents as JSON lines; AWS_ENDPOINT_URL names another store than Amazon's",
    "storage.serviceAccountName": "the pods' own service account is used",
}


class LogOptions(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Content of the annotation, and the fields of `logger` that have an effect."""

    url: str = ""
    mode: str = "all"
    content: Literal["payload", "metadata"] = "payload"
    sample: float = 1.0
    max_bytes: int = MAX_BYTES
    redact_fields: tuple[str, ...] = ()
    redact_patterns: tuple[str, ...] = ()
    metadata_headers: tuple[str, ...] = ()
    metadata_annotations: tuple[str, ...] = ()
    batch_size: int = 100
    batch_interval: str = "1s"
    path: str = ""  # logger.storage.path


def settings_of(context: PlanContext) -> LogSettings | None:
    """Return the settings of a component's log; None: it has none. Raise ValueError with the reason."""
    written, service = context.component.logger, context.service
    options = _annotation(context)
    if written is None and (not options.get("url") or context.component.role != _entry(context)):
        return None
    fields = {key: value for key, value in (written or {}).items() if key not in ("storage", "marshallerUrl")}
    path = str(((written or {}).get("storage") or {}).get("path") or "")
    try:
        chosen = msgspec.convert({**options, **fields, "path": path}, LogOptions, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    if not chosen.url:
        return None
    settings = LogSettings(
        chosen.url, service.namespace, service.name, context.component.role, chosen.mode,
        chosen.content == "payload", chosen.sample, chosen.max_bytes, chosen.redact_fields, chosen.redact_patterns,
        tuple(name.lower() for name in chosen.metadata_headers),
        {key: service.annotations[key] for key in chosen.metadata_annotations if key in service.annotations},
        chosen.path, chosen.batch_size, quantities.parse_duration(chosen.batch_interval) or 0.0,
    )  # fmt: skip
    check(settings)
    return settings


def _annotation(context: PlanContext) -> dict[str, Json]:
    text = context.service.annotations.get(names.ANNOTATION_REQUEST_LOG, "")
    try:
        return msgspec.yaml.decode(text, type=dict[str, Json]) if text else {}
    except msgspec.MsgspecError as error:
        raise ValueError(f"is not YAML of keys and values: {error}") from None


def _entry(context: PlanContext) -> str:
    return next((role for role in names.ENTRY_ROLES if role in context.service.components), "")


def check_request_log(context: PlanContext, log: DecisionLog) -> None:
    """Report invalid settings (PL385) and what has no effect (PL360, PL361); record who logs."""
    written, entry = context.component.logger, context.component.role == _entry(context)
    path = context.path("logger") if written is not None else ANNOTATION
    try:
        settings = settings_of(context)
    except ValueError as error:
        if written is not None or entry:
            log.error("PL385", path, str(error))
        return
    at_gateway = context.capabilities.access_at_gateway
    if entry and context.service.annotations.get(names.ANNOTATION_AUDIT) == "true" and not at_gateway:
        message = "has no effect on this target: only the gateway of local, docker and slurm writes the audit log"
        log.warn("PL360", f"metadata.annotations.{names.ANNOTATION_AUDIT}", message)
    if settings is None:
        if written is not None or (entry and _is_alone(context)):
            log.warn("PL360", path, "has no effect without a url; add one, such as http://sink.default.svc/")
        return
    for field in _ignored(written or {}):
        log.warn("PL360", f"{path}.{field}", f"has no effect: {IGNORED[field]}")
    if at_gateway and not entry:
        log.warn("PL360", path, f"has no effect on this target: its gateway logs requests to the {_entry(context)}")
    elif not at_gateway and (not context.choice.is_pilotlight or context.choice.gateway):
        log.warn("PL361", path, "third-party servers do not log requests; use a target with our gateway, such as local")
    else:
        what = "payloads" if settings.payload else "metadata"
        by = "by the gateway" if at_gateway else "by each replica, HTTP only"
        log.decide(context.component.role, "request log", f"{what} to {settings.url}", f"{path} is set; written {by}")


def _is_alone(context: PlanContext) -> bool:
    """Whether the annotation is set and no component has a `logger`."""
    has_logger = any(part.logger is not None for part in context.service.components.values())
    return names.ANNOTATION_REQUEST_LOG in context.service.annotations and not has_logger


def _ignored(logger: Mapping[str, Json]) -> Iterator[str]:
    storage = logger.get("storage") or {}
    for field in IGNORED:
        group, _, name = field.rpartition(".")
        if (storage if group else logger).get(name):
            yield field


def object_annotations(context: PlanContext) -> dict[str, str]:
    """Return the annotations of the entry workload's object that the gateway reads, where it logs."""
    if not context.capabilities.access_at_gateway or context.component.role != _entry(context):
        return {}
    audit = context.service.annotations.get(names.ANNOTATION_AUDIT) == "true"
    return {
        **_encoded(context, names.ANNOTATION_LOG_SETTINGS), **({names.ANNOTATION_AUDIT: "true"} if audit else {})
    }  # fmt: skip


def predictor_setting(context: PlanContext) -> dict[str, str]:
    """Return the setting of our predictor, where no gateway logs for it."""
    return {} if context.capabilities.access_at_gateway else _encoded(context, "REQUEST_LOG")


def _encoded(context: PlanContext, name: str) -> dict[str, str]:
    try:
        settings = settings_of(context)
    except ValueError:  # reported by check_request_log
        return {}
    return {name: encode(settings)} if settings is not None else {}
