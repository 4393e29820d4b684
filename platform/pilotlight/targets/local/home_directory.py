"""Home folder of the embedded platform, private to its user."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

from pilotlight.errors import PlatformError

ENV_HOME: Final = "PILOTLIGHT_HOME"
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Home:
    """Folder of one platform; platforms with different folders are independent."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "state.db"

    @property
    def token(self) -> Path:
        """The key of the control API; only its owner may read it."""
        return self.root / "token"

    @property
    def address(self) -> Path:
        """Announcement of the control process as JSON: pid, start ticks, ports and version."""
        return self.root / "daemon.json"

    @property
    def lock(self) -> Path:
        return self.root / "daemon.lock"

    @property
    def restart_command(self) -> Path:
        """Command of the control process, NUL-separated: exists from its first start until `down` (should run)."""
        return self.root / "daemon.command"

    @property
    def parent_lock(self) -> Path:
        return self.run / "parent.lock"

    @property
    def gateway_socket(self) -> Path:
        return self.root / "gateway.sock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def process_logs(self) -> tuple[Path, Path]:
        """Logs of the control process and the gateway, opened for appending."""
        return self.logs / "daemon.log", self.logs / "gateway.log"

    @property
    def run(self) -> Path:
        """Files of running processes: exit statuses, sockets of pilot lights, endpoints for routers."""
        return self.root / "run"

    @property
    def sockets(self) -> Path:
        """A folder for each replica with the sockets of its ports; only its owner may enter it."""
        return self.run / "replicas"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def models(self) -> Path:
        """Snapshots of local models: model_snapshots.py."""
        return self.root / "models"

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
                raise PlatformError(f"{path} is a link, must be a file", f"rm {quote(str(path))}; a new one is made")
            if status.st_mode & OTHERS_WRITE:
                raise PlatformError(f"{path} can be written by other users", f"chmod go-w {quote(str(path))}")


def home(environ: Mapping[str, str] = os.environ) -> Home:
    """Return PILOTLIGHT_HOME, else `pilotlight` in the XDG state folder."""
    state = Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return Home(Path(environ.get(ENV_HOME) or state / "pilotlight").expanduser().absolute())
