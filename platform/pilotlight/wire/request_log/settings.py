"""Settings of a service's request log: planned from `logger` and an annotation, read by gateway and predictor."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final
from urllib.parse import urlsplit

from pilotlight.wire.request_log.redaction import compiled, is_field

SCHEMES: Final = ("http", "https", "s3", "file")
FILE_SUFFIX: Final = ".jsonl"  # of file sinks: no manifest can append to a file of another kind
MODES: Final = ("all", "request", "response")
MAX_BYTES: Final = 64 << 10
MAX_BODY: Final = 1 << 20  # that `max_bytes` may be


@dataclass(frozen=True, slots=True)
class LogSettings:
    """`redact_fields` are names of JSON keys at any depth, or paths such as `$.messages[*].content`."""

    url: str
    namespace: str = ""
    service: str = ""
    component: str = "predictor"
    mode: str = "all"
    payload: bool = True  # False: metadata only
    sample: float = 1.0  # ratio of the requests that are logged
    max_bytes: int = MAX_BYTES  # of a body; the rest is left out
    redact_fields: tuple[str, ...] = ()
    redact_patterns: tuple[str, ...] = ()  # RE2's regular expressions, for texts and strings in JSON
    headers: tuple[str, ...] = ()  # of the request, in lower case
    annotations: Mapping[str, str] = field(default_factory=dict)  # of the InferenceService
    folder: str = ""  # below the bucket's prefix: `storage.path`
    batch_size: int = 100  # events of one write or S3 object
    batch_s: float = 1.0  # that an event waits for others

    @property
    def logs_requests(self) -> bool:
        return self.mode != "response"

    @property
    def logs_responses(self) -> bool:
        return self.mode != "request"


def check(settings: LogSettings) -> None:
    """Raise ValueError with the setting, the problem and the fix."""
    parts = urlsplit(settings.url)
    if parts.scheme in ("gs", "gcs", "abfs", "abfss", "az"):
        raise ValueError(f"url = {settings.url}: {parts.scheme} is not supported; use s3, http, https or file")
    if parts.scheme not in SCHEMES:
        raise ValueError(f"url = {settings.url}, must start with http://, https://, s3:// or file://")
    if parts.scheme == "file" and not (parts.path.endswith(FILE_SUFFIX) and not parts.netloc):
        raise ValueError(f"url = {settings.url}, must be an absolute path such as file:///var/log/iris{FILE_SUFFIX}")
    if parts.scheme == "file" and parts.path.lower().rpartition("/")[2].startswith("audit"):
        raise ValueError(f"url = {settings.url}, must not name a file of audit logs; use another name than audit…")
    if parts.scheme != "file" and not parts.hostname:
        raise ValueError(f"url = {settings.url}, must name a host or bucket")
    if parts.username or parts.password:
        raise ValueError("url must not contain credentials; set them in the environment of the server that logs")
    if settings.mode not in MODES:
        raise ValueError(f"mode = {settings.mode}, must be {', '.join(MODES)}")
    if not 0 < settings.sample <= 1:
        raise ValueError(f"sample = {settings.sample:g}, must be above 0 and at most 1")
    if not 0 <= settings.max_bytes <= MAX_BODY:
        raise ValueError(f"maxBytes = {settings.max_bytes}, must be 0 to {MAX_BODY}")
    if settings.batch_size < 1 or not 0 <= settings.batch_s <= 60:
        raise ValueError("batchSize must be at least 1, and batchInterval at most 60s")
    for written in settings.redact_fields:
        if not is_field(written):
            fix = "write a key such as content, or a path from the root such as $.messages[*].content"
            raise ValueError(f"redactFields: {written!r} matches nothing; {fix}")
    for pattern in settings.redact_patterns:
        try:
            compiled(pattern)
        except ValueError as error:
            fix = "write it in RE2's syntax, which has no lookaround and no backreferences"
            raise ValueError(f"redactPatterns: {pattern} cannot be read: {error}; {fix}") from None


def encode(settings: LogSettings) -> str:
    defaults = asdict(LogSettings(""))
    written = {name: value for name, value in asdict(settings).items() if value != defaults[name]}
    return json.dumps(written, sort_keys=True, separators=(",", ":"))


def decode(text: str) -> LogSettings:
    """Return the settings that `encode` wrote. Raise ValueError with the reason."""
    try:
        written = json.loads(text)
        lists = {name: tuple(value) for name, value in written.items() if isinstance(value, list)}
        settings = LogSettings(**{**written, **lists})
        check(settings)
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"is not the setting of a request log ({error})") from None
    return settings
