"""Structured logs in one schema: a JSON object per line on stderr, or text on a terminal; settings may change live.

    {"ts": "2026-01-31T12:00:00.123Z", "level": "INFO", "event": "model.loaded", "message": "…", "logger": "pilotlight",
     "request_id": "…", "traceparent": "…", …fields, "traceback": "…"}

Keys from `request_id` on are present only with a value. Libraries and models that use `logging` are logged in the same
schema, with the event "log". Writing never raises: a full disk or a closed pipe loses lines, not requests.
"""

import logging
import os
import re
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from errno import EINVAL
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TextIO

from pilotlight_predictor.errors import BadRequest, Forbidden, LoadFailed

Format = Literal["json", "text", "auto"]
Level = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
LEVELS: Final[dict[Level, int]] = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
LOGGER: Final = "pilotlight"
ACCESS_LOGGER: Final = "pilotlight.access"
MASK: Final = "[redacted]"
FORMATS: Final = ("default", "ISO8601")
_SWITCHES: Final = {
    "log_info": (logging.INFO,),
    "log_warning": (logging.WARNING,),
    "log_error": (logging.ERROR, logging.CRITICAL),
}

# A count of tokens (max_tokens, prompt_tokens) is not a secret; a token is.
_MASKED_NAMES: Final = (
    r"authorization|cookie|passw|secret|credential|api[-_]?key|access[-_]?key|(^|[-_])token$|^sig(nature)?$"
)
_MASKED_TEXTS: Final = (
    r"(?P<scheme>\b(?:bearer|basic)\s+)[\w.~+/=-]{6,}"
    r"|(?P<userinfo>://)[^/\s@]+@"
    r"|(?P<query>[?&](?:[\w-]*signature|[\w-]*credential|[\w-]*token|sig|key|api_key)=)[^&\s\"']+"
)


def configure(
    level: Level = "INFO",
    format: Format = "auto",  # noqa: A002
    stream: TextIO | None = None,
    file: str = "",
) -> None:
    """Send all logs of this process to `stream` (stderr), or append them to `file`. `auto`: text on a terminal, else
    JSON. Raise LoadFailed if the file cannot be opened."""
    target = stream if stream is not None else sys.stderr
    as_text = format == "text" or (format == "auto" and target.isatty())
    handler = LineHandler(target, TextFormatter() if as_text else JsonFormatter())
    try:
        handler.redirect(Path(file) if file else None)
    except OSError as error:
        raise LoadFailed(f"log_file = {file}, cannot be opened: {error.strerror} (--log-file)") from None
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)


def log(
    event: str,
    message: str,
    *,
    level: Level = "INFO",
    request_id: str = "",
    traceparent: str = "",
    error: BaseException | None = None,
    logger: str = LOGGER,
    **fields: Any,
) -> None:
    """Log an event with its fields; `error` adds its traceback."""
    target, number = logging.getLogger(logger), LEVELS[level]
    if not target.isEnabledFor(number):
        return
    context = {"request_id": request_id, "traceparent": traceparent}
    known = {name: value for name, value in context.items() if value}
    extra = {"event": event, "fields": {**known, **fields}}
    target.log(number, "%s", message, exc_info=error, extra=extra)


def access(method: str, path: str, status: int, seconds: float, *, request_id: str, **fields: Any) -> None:
    """Write a line of the access log, without the query of the path."""
    path = path.partition("?")[0]
    message = f"{method} {path} {status} {seconds * 1000:.1f}ms"
    values: dict[str, Any] = {"method": method, "path": path, "status": status, "duration_ms": round(seconds * 1000, 3)}
    log("request", message, logger=ACCESS_LOGGER, request_id=request_id, **values, **fields)


def new_request_id() -> str:
    """Return a request id for a failed request without one; the response carries it to the client."""
    return os.urandom(8).hex()


def redact(value: Any, name: str = "") -> Any:
    """Return the value with credentials masked, also within mappings such as headers."""
    if _is_secret(name):
        return MASK
    if isinstance(value, str):
        # Every pattern needs one of these characters; most values, such as ids and paths, have none.
        return _secret_text().sub(_mask, value) if " " in value or ":" in value or "=" in value else value
    if isinstance(value, Mapping):
        return {str(key): redact(item, str(key)) for key, item in value.items()}
    return value


@lru_cache(maxsize=512)
def _is_secret(name: str) -> bool:
    return re.search(_MASKED_NAMES, name, re.I) is not None


@cache
def _secret_text() -> re.Pattern[str]:
    """Compile at the first line instead of at import, for the cold start."""
    return re.compile(_MASKED_TEXTS, re.I)


def _mask(match: re.Match[str]) -> str:
    prefix = match.group(match.lastgroup or 0)
    return prefix + MASK + ("@" if match.lastgroup == "userinfo" else "")


def document(record: logging.LogRecord) -> dict[str, Any]:
    """Return the line as a dict, in the order of the schema."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    line = {
        "ts": timestamp(record.created),
        "level": record.levelname,
        "event": getattr(record, "event", "log"),
        "message": redact(record.getMessage()),
        "logger": record.name,
    }
    line |= {name: redact(value, name) for name, value in fields.items() if name not in line and value is not None}
    if record.exc_info and record.exc_info[1] is not None:
        import traceback

        line["traceback"] = redact("".join(traceback.format_exception(record.exc_info[1])))
    return line


def timestamp(seconds: float) -> str:
    """Format as RFC 3339 in UTC with milliseconds."""
    millis = int(seconds * 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(millis // 1000)) + f".{millis % 1000:03d}Z"


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        import orjson

        line = document(record)
        try:
            return orjson.dumps(line, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # a number beyond 64 bits, a lone surrogate, a depth beyond its limit
            return orjson.dumps({name: ascii(value)[:10_000] for name, value in line.items()}).decode()


class TextFormatter(logging.Formatter):
    """Lines for people; fields that the message states already, switches and structures are only in JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line = document(record)
        event, message, tail = line.pop("event"), line.pop("message"), line.pop("traceback", "")
        text = message if message.startswith(f"{event} ") else f"{event}: {message}"
        head = f"{line.pop('ts')} {line.pop('level'):<8} {text}"
        line.pop("logger")
        new = {name: value for name, value in line.items() if str(value) not in message}
        fields = "".join(f" {name}={value}" for name, value in new.items() if not isinstance(value, dict | list | bool))
        return f"{head}{fields}\n{tail.rstrip()}" if tail else head + fields


class LineHandler(logging.Handler):
    """Handler that writes whole lines, and drops those that cannot be written. `levels`: None for all."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        super().__init__()
        self._first = self._stream = stream
        self._erase = "\x1b[K" if stream.isatty() else ""  # a progress bar, which ends at the start of its line
        self.first_formatter = formatter
        self.levels: frozenset[int] | None = None
        self.setFormatter(formatter)

    def show(self, levels: frozenset[int]) -> None:
        self.levels = levels
        logging.getLogger().setLevel(min(levels, default=logging.CRITICAL + 1))

    def redirect(self, path: "Path | None") -> None:
        """Append to a file from now on; None: to the first stream again."""
        stream = self._first if path is None else os.fdopen(open_to_append(path), "a", encoding="utf-8")
        with self.lock or nullcontext():
            old, self._stream = self._stream, stream
        if old is not self._first:
            old.close()

    def emit(self, record: logging.LogRecord) -> None:
        if self.levels is not None and record.levelno not in self.levels:
            return
        with suppress(Exception):
            erase = self._erase if self._stream is self._first else ""
            self._stream.write(f"{erase}{self.format(record)}\n")
            self._stream.flush()


class LogSettings:
    """Triton's log settings. `level`: minimum level at start; `folder`: --files-dir, empty for none.

    `log_info`, `log_warning` and `log_error` enable single levels, `log_verbose_level` above 0 enables debug lines;
    `log_file` is a file in --files-dir; `log_format`: ISO8601 for text lines, default for the format set at start.
    """

    def __init__(self, level: str, folder: str, file: str = "") -> None:
        least = LEVELS[level.upper()]  # type: ignore[index]
        self._folder = Path(folder) if folder else None
        self._values: dict[str, Any] = {
            "log_file": file,
            **{key: least <= numbers[0] for key, numbers in _SWITCHES.items()},
            "log_verbose_level": 1 if least <= logging.DEBUG else 0,
            "log_format": "default",
        }

    def values(self) -> dict[str, Any]:
        return dict(self._values)

    def change(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Apply changes, all or none, and return the settings. Raises BadRequest or Forbidden."""
        updated = {**self._values, **{key: self._checked(key, value) for key, value in changes.items()}}
        for handler in logging.getLogger().handlers:
            if isinstance(handler, LineHandler):  # that of `configure`
                self._apply(updated, handler)
        self._values = updated
        return self.values()

    def _checked(self, key: str, value: Any) -> Any:
        if key not in self._values:
            raise BadRequest(f"unknown log setting {key[:100]}; known: {', '.join(self._values)}")
        if key in _SWITCHES and not isinstance(value, bool):
            raise BadRequest(f"{key} = {value!r}, must be true or false")
        if key == "log_verbose_level" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise BadRequest(f"{key} = {value!r}, must be an integer of 0 or more")
        if key == "log_verbose_level" and value >= 1 << 32:
            raise BadRequest(f"{key} = {value}, must be less than {1 << 32}")
        if key == "log_format" and value not in FORMATS:
            raise BadRequest(f"{key} = {value!r}, must be one of {', '.join(FORMATS)}")
        if key == "log_file" and value != "":
            if self._folder is None:
                raise Forbidden("log_file: this server does not write files (--files-dir)")
            check_file_name(key, value)
        return value

    def _apply(self, updated: Mapping[str, Any], handler: LineHandler) -> None:
        if updated["log_file"] != self._values["log_file"]:
            name = updated["log_file"]
            try:
                handler.redirect(self._folder / name if name and self._folder is not None else None)
            except OSError as error:
                raise BadRequest(f"log_file = {name!r}, cannot be opened in --files-dir: {error.strerror}") from None
        on = {number for key, numbers in _SWITCHES.items() if updated[key] for number in numbers}
        if updated["log_verbose_level"]:
            on.add(logging.DEBUG)
        handler.show(frozenset(on))
        handler.setFormatter(TextFormatter() if updated["log_format"] == "ISO8601" else handler.first_formatter)


def check_file_name(key: str, value: Any) -> None:
    """Raise BadRequest unless `value`, of the setting `key`, is the name of a file in --files-dir."""
    if not isinstance(value, str) or "/" in value or "\0" in value or value in {".", ".."} or len(value) > 200:
        raise BadRequest(f"{key} = {str(value)[:200]!r}, must be the name of a file in --files-dir, without folders")


def open_to_append(path: Path) -> int:
    """Open a regular file. Raise OSError for a link, which leads elsewhere, and for a FIFO, which would block."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(EINVAL, "it is not a regular file", str(path))
    return descriptor
