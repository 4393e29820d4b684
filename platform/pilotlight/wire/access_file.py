"""File with the access rules of a service, mounted from a Secret, for the servers in its pods: predictor and router.

`encode` writes it when manifests are rendered. A server reads it again when it changes, so that a rotated token needs
neither a restart nor a new revision. An invalid file never means open access: the last valid rules stay in force.
"""

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from pilotlight.wire.service_access import Access, AccessRules, Jwt, Rate

CHECK_S: Final = 1.0  # between two looks at the file; the kubelet takes up to a minute to write a changed Secret
TOKEN: Final = re.compile(r"(?:[A-Za-z0-9][\w.@/-]{0,99}=)?[0-9a-f]{64}", re.ASCII)  # with or without a name


def encode(rules: AccessRules) -> str:
    access = asdict(rules.access) if rules.access is not None else {}
    if access.get("jwt") and not access["jwt"]["team"]:
        del access["jwt"]["team"]  # which servers of earlier releases do not know
    parts = {**access, "rate": asdict(rules.rate) if rules.rate is not None else None}
    return json.dumps({name: value for name, value in parts.items() if value}, sort_keys=True)


def decode(text: str) -> AccessRules:
    """Return the rules. Raises ValueError with the reason, also if there is no rule at all."""
    try:
        document = json.loads(text)
        tokens, jwt, rate = (document.pop(name, None) for name in ("tokens", "jwt", "rate"))
        access = Access(tuple(tokens or ()), _jwt(jwt) if jwt else None)
        rules = AccessRules(access if tokens or jwt else None, Rate(**rate) if rate else None)
        rate = rules.rate
        if rate is not None and not (rate.requests > 0 and 0 < rate.seconds < math.inf and rate.burst >= 0):
            raise ValueError("rate must be above 0")
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"is not a file of access rules ({error})") from None
    if any(part is not None and not part for part in (tokens, jwt)):
        raise ValueError("has tokens or jwt without content, which would allow every client; remove it to allow that")
    if document or rules == AccessRules():
        raise ValueError(f"has {next(iter(document), 'no rule')}, must have tokens, jwt or rate")
    if not all(isinstance(token, str) and TOKEN.fullmatch(token) for token in access.tokens):
        raise ValueError("has tokens that are not SHA-256 in hex: printf %s TOKEN | sha256sum | cut -c1-64")
    return rules


def _jwt(written: dict[str, Any]) -> Jwt:
    jwt = Jwt(**{**written, "algorithms": tuple(written.get("algorithms") or ("RS256", "ES256"))})
    parts = (jwt.keys, jwt.issuer, jwt.audience, jwt.scope, jwt.team, *jwt.algorithms)
    if not all(isinstance(part, str) for part in parts):
        raise TypeError("the parts of jwt must be texts")
    return jwt


class AccessFile:
    """The rules of a file. Raises OSError and ValueError at first; later errors go to `on_error`."""

    def __init__(self, path: str, on_error: Callable[[str], None], now: float) -> None:
        self._path, self._on_error, self._problem = path, on_error, ""
        self._version = self._read_version()
        self._rules, self._checked_at = self._read(), now

    def rules(self, now: float) -> AccessRules:
        """Return the rules in force. `now` is monotonic."""
        if now - self._checked_at >= CHECK_S:
            self._checked_at = now
            try:
                version = self._read_version()
                if version != self._version:
                    self._rules = self._read()
                    self._version, self._problem = version, ""
            except (OSError, ValueError) as error:  # tried again: it may be written later, or made readable
                if str(error) != self._problem:
                    self._problem = str(error)
                    self._on_error(f"{self._path}: {error}; the previous rules stay in force")
        return self._rules

    def _read_version(self) -> tuple[int, int, int]:
        status = os.stat(self._path)  # follows the link that the kubelet swaps
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> AccessRules:
        with open(self._path, encoding="utf-8") as file:
            return decode(file.read())
