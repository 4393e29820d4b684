"""Images and videos that requests refer to, fetched safely. The public names are here.

    reference ─> references (one parser) ─> sources (local, signed address) ─> web (checked, pinned, bounded) ─> Media
    Media ─> images | videos ─> arrays ─> tensors

Clients get messages about what they can correct; addresses and network errors are in the log only.
"""

from pilotlight.microservices.media.fetch import fetch, read_declaration
from pilotlight.microservices.media.images import Media
from pilotlight.microservices.media.limits import Limits, MediaRefused, limits_from

__all__ = ["Limits", "Media", "MediaRefused", "fetch", "limits_from", "read_declaration"]
