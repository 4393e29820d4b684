"""Images and videos that requests name, brought in safely. Everything that others may use is named here.

    reference ─> references (one parser) ─> local | objects (signed address) ─> web (checked, pinned, bounded) ─> Media
    Media ─> images | videos ─> arrays ─> tensors

The client that asks is told what it can mend; addresses and reasons of the network are for the log.
"""

from pilotlight.microservices.media.fetching import fetch
from pilotlight.microservices.media.limits import Limits, limits_from
from pilotlight.microservices.media.refusals import MediaRefused
from pilotlight.microservices.media.sniffing import Media

__all__ = ["Limits", "Media", "MediaRefused", "fetch", "limits_from"]
