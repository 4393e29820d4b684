"""Where the embedded platform keeps what it has: one folder, private to its user."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ENV_HOME: Final = "PILOTLIGHT_HOME"


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one platform. Two of them never know of each other."""

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
        """Who runs here: pid, start, ports and version of the control process, as JSON."""
        return self.root / "daemon.json"

    @property
    def lock(self) -> Path:
        return self.root / "daemon.lock"

    @property
    def gateway_socket(self) -> Path:
        return self.root / "gateway.sock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def process_logs(self) -> tuple[Path, Path]:
        """Of the control process and the gateway; they only ever append."""
        return self.logs / "daemon.log", self.logs / "gateway.log"

    @property
    def run(self) -> Path:
        """Files of living processes: exit statuses, sockets of pilot lights, endpoints for routers."""
        return self.root / "run"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def create(self) -> "Home":
        for folder in (self.root, self.logs, self.run, self.cache):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self


def home(environ: Mapping[str, str] = os.environ) -> Home:
    """PILOTLIGHT_HOME, else `pilotlight` where the desktop standard keeps state."""
    state = Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return Home(Path(environ.get(ENV_HOME) or state / "pilotlight").expanduser().absolute())
