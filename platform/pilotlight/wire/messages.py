"""Parts of error messages that control plane and predictor share: suggestions, and URIs without their secrets.

Servers of local models import it during a cold start, so patterns are strings and difflib is imported on first use.
"""

import re
from collections.abc import Collection
from typing import Final

MAX_COMPARED: Final = 500  # names that a suggestion is chosen from
_AUTHORITY: Final = r"^([A-Za-z][A-Za-z0-9+._-]*://)([^/?]*@)?([^?]*)(\?.+)?"


def suggestion(wrong: str, known: Collection[str], cutoff: float = 0.6) -> str:
    """Return `; did you mean minReplicas?` or "". Compares without case, where most typing errors are."""
    if len(known) > MAX_COMPARED:
        return ""
    import difflib

    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wrong.lower(), lowered, n=1, cutoff=cutoff)
    return f"; did you mean {lowered[close[0]]}?" if close else ""


def redact_uri(uri: str) -> str:
    """Return the URI without user, password and query, where signatures and tokens are. A path stays as it is."""
    match = re.match(_AUTHORITY, uri, re.DOTALL)
    if match is None:
        return uri
    scheme, user, rest, query = match.groups()
    return f"{scheme}{'***@' if user else ''}{rest}{'?***' if query else ''}"
