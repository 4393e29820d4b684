"""Home folder of the embedded platform, private to its user."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Final

from pilotlight.errors import PlatformError

ENV_HOME: Final = "PILOTLIGHT_HOME"
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class Home:
    """Folder of one platform; platforms with different folders are independent."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.database = root / "state.db"
        self.history = root / "history.db"  # figures of the last 24 hours; may be removed
        self.token = root / "token"  # key of the control API; only its owner may read it
        self.address = root / "daemon.json"  # announcement of the control process: pid, start ticks, ports, version
        self.lock = root / "daemon.lock"
        # Command of the control process, NUL-separated: exists from its first start until `down` (should run).
        self.restart_command = root / "daemon.command"
        self.gateway_socket = root / "gateway.sock"
        self.logs = root / "logs"
        self.audit = root / "audit"  # wire/request_log/audit_log.py; written by control process and gateway
        self.run = root / "run"  # of running processes: exit statuses, sockets of pilot lights, endpoints for routers
        self.parent_lock = self.run / "parent.lock"
        self.sockets = self.run / "replicas"  # a folder for each replica; only its owner may enter it
        self.copies = self.run / "models"  # private copies of models that others can change, a folder for each replica
        self.cache = root / "cache"
        self.environments = self.cache / "environments"  # of Python models with requirements: model_environments.py
        self.sources = self.cache / "sources"  # models that the Python SDK has written, newest 32
        self.models = root / "models"  # snapshots of local models: model_snapshots.py

    def create(self) -> "Home":
        """Create the missing folders. Raise PlatformError if another user could change what is in them."""
        self.check_owner()
        for folder in (self.root, self.logs, self.run, self.cache):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self

    def check_owner(self, uid: int | None = None) -> None:
        """Raise PlatformError if home or token belong to another user than `uid` (this one), or others may write them.

        A user who can write the token, the announcement or the restart command can run code as the owner.
        """
        uid = os.geteuid() if uid is None else uid
        for path in (self.root, self.run, self.token):
            try:
                status = path.lstat() if path == self.token else path.stat()
            except OSError:  # not there yet, or not readable: reported when it is used
                continue
            if path != self.token and not stat.S_ISDIR(status.st_mode):
                continue  # likewise
            if status.st_uid != uid:
                problem = f"{path} belongs to uid {status.st_uid}, not to the user of this command (uid {uid})"
                hint = f"chown -R {uid} {quote(str(self.root))}, or set {ENV_HOME} to a new folder"
                raise PlatformError(problem, hint)
            if stat.S_ISLNK(status.st_mode):
                raise PlatformError(f"{path} is a link, must be a file", f"rm {quote(str(path))}; a new one is created")
            if status.st_mode & OTHERS_WRITE:
                raise PlatformError(f"{path} is writable by other users", f"chmod go-w {quote(str(path))}")


def home(environ: Mapping[str, str] = os.environ) -> Home:
    """Return PILOTLIGHT_HOME, else `pilotlight` in the XDG state folder."""
    state = Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return Home(Path(environ.get(ENV_HOME) or state / "pilotlight").expanduser().absolute())


def own_folder(path: Path) -> Path:
    """Return a private folder of this user, created if needed. Raise PlatformError if it is a link or another user's.

    Its parent may be writable for others, as /tmp is.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PlatformError(f"{path} must be a folder that only you can write to", f"remove {path}")
    return path
