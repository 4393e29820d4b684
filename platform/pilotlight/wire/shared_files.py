"""Files that the processes of a machine share: locks that end with their holder, and files replaced in one step."""

import fcntl
import os
from functools import partial
from pathlib import Path
from typing import IO


def try_lock(path: Path, *, wait: bool = False) -> IO[bytes] | None:
    """Take the lock of a file, which the kernel releases with the process; None: another process holds it.

    `wait` until that releases it. Raise OSError if the file cannot be opened, or is a link.
    """
    file = open(path, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))  # noqa: SIM115 - the caller closes it
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none
        return False
    return False


def replace_file(path: Path, content: bytes | Path, *, mode: int = 0o600, durable: bool = False) -> None:
    """Write a new file and rename it: readers see the old content or the new. `durable`: synced to disk before.

    `content`: bytes, or a file to copy.

    Raise OSError and leave the old file if the new one cannot be written.
    """
    fresh = path.with_name(f".{path.name[:100]}.{os.urandom(4).hex()}")
    try:
        with open(fresh, "xb", opener=partial(os.open, mode=mode)) as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                import shutil  # 2 ms that no other caller needs

                with content.open("rb") as source:
                    shutil.copyfileobj(source, file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
