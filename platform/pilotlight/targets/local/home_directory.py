"""Home folder of the embedded platform, private to its user."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ENV_HOME: Final = "PILOTLIGHT_HOME"


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
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def models(self) -> Path:
        """Snapshots of local models: model_snapshots.py."""
        return self.root / "models"

    def create(self) -> "Home":
        for folder in (self.root, self.logs, self.run, self.cache):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self


def home(environ: Mapping[str, str] = os.environ) -> Home:
    """Return PILOTLIGHT_HOME, else `pilotlight` in the XDG state folder."""
    state = Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return Home(Path(environ.get(ENV_HOME) or state / "pilotlight").expanduser().absolute())
