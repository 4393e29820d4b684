"""Parts of error messages that control plane and predictor share: suggestions, and URIs without their secrets.

Servers of local models import it during a cold start, so patterns are strings and difflib is imported on first use.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

MAX_COMPARED: Final = 500  # names that a suggestion is chosen from
COMPARED: Final = 200  # names with an unknown one of a request: a comparison takes 10 µs
FEW, LENGTH = 5, 200  # names that are all shown; characters of one that are compared
_AUTHORITY: Final = r"^([A-Za-z][A-Za-z0-9+._-]*://)([^/?]*@)?([^?]*)(\?.+)?"


def suggestion(wrong: str, known: Collection[str]) -> str:
    """Return `; did you mean minReplicas?` or ""."""
    close = nearest(wrong, known, 1) if len(known) <= MAX_COMPARED else []
    return f"; did you mean {close[0]}?" if close else ""


def nearest(wrong: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the most similar names. Compares without case, where most typing errors are."""
    import difflib

    lowered = {name.lower(): name for name in known}
    return [lowered[name] for name in difflib.get_close_matches(wrong.lower(), lowered, count)]


def known_names(wrong: str, known: Sequence[str], more: str) -> str:
    """Return `; did you mean a or b?`, else all names if they are few, else `more`, which says who lists them."""
    if near := nearest(wrong[:LENGTH], known[:COMPARED]):
        return f"; did you mean {' or '.join(near)}?"
    return f"; there {'are' if known[1:] else 'is only'} {', '.join(known)}" if 0 < len(known) <= FEW else f"; {more}"


def quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def redact_uri(uri: str) -> str:
    """Return the URI without user, password and query, where signatures and tokens are. A path stays as it is."""
    match = re.match(_AUTHORITY, uri, re.DOTALL)
    if match is None:
        return uri
    scheme, user, rest, query = match.groups()
    return f"{scheme}{'***@' if user else ''}{rest}{'?***' if query else ''}"
