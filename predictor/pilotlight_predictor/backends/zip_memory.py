"""Memory that a model file needs which is a zip (.pt, .pt2, .skops), checked before a library unpacks it."""

import zipfile
from pathlib import Path

from pilotlight.wire.machine import available_memory
from pilotlight_predictor.errors import LoadFailed

MIB = 1 << 20


def check_unpacked_memory(path: Path) -> None:
    """Raise LoadFailed if the members of a zip do not fit the available memory.

    torch and skops unpack a member in memory, up to the size that its header declares. Members that are not compressed
    are as large as the file, and torch maps them.
    """
    with zipfile.ZipFile(path) as archive:
        needed = sum(member.file_size for member in archive.infolist() if member.compress_type != zipfile.ZIP_STORED)
    available = available_memory()
    if available is not None and needed > available:
        raise LoadFailed(
            f"{path.name} unpacks to {needed / MIB:,.0f} MiB, but only {available / MIB:,.0f} MiB of memory are"
            " available; check that it is the right file, or save it without compression"
        )
