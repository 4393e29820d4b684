"""Images and videos that requests refer to, fetched safely. The public names are here.

    reference ─> references (one parser) ─> local | objects (signed address) ─> web (checked, pinned, bounded) ─> Media
    Media ─> images | videos ─> arrays ─> tensors

Clients get messages about what they can correct; addresses and network errors are in the log only.
"""

from pilotlight.microservices.media.fetching import fetch
from pilotlight.microservices.media.limits import Limits, limits_from
from pilotlight.microservices.media.refusals import MediaRefused
from pilotlight.microservices.media.sniffing import Media

__all__ = ["Limits", "Media", "MediaRefused", "fetch", "limits_from"]
