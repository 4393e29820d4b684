"""A real sshd for tests, of Debian's package, that lets one key in; `ssh node1` leads there by the real client.

It wants an account and a folder of its own on the machine, and has them in a view of the file system that is its alone.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.daemons.availability import Unavailable
from tests.daemons.daemons import DidNotStart, daemon
from tests.daemons.debian import environment, unpacked
from tests.ports import free_port

ACCOUNTS = {
    "passwd": "root:x:0:0:root:{folder}:/bin/bash\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n",
    "shadow": "root:x:20000:0:99999:7:::\n",
}
SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/key.pub
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
SetEnv {variables}
"""
CLIENT = """
Host {name}
  HostName 127.0.0.1
  Port {port}
  User root
  IdentityFile {folder}/key
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""
VIEW = (
    "mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && "
    'mount --bind "$1/passwd" /etc/passwd && mount --bind "$1/shadow" /etc/shadow && exec "$2" -D -e -f "$1/server"'
)


@contextmanager
def ssh_server(base: Mapping[str, str], name: str, remote: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment in which `ssh NAME` leads there; commands get `remote`. Raises Unavailable with the reason."""
    for program in ("ssh", "ssh-keygen", "unshare"):
        if os.getuid() != 0 or shutil.which(program) is None:
            raise Unavailable(f"needs root and {program}")
    programs = environment(unpacked("openssh-server"), base)
    sshd = shutil.which("sshd", path=programs["PATH"]) or "sshd"
    with tempfile.TemporaryDirectory(prefix="pilotlight-ssh-") as scratch:
        folder, port = Path(scratch), free_port()
        _write(folder, port, name, remote)
        words = ["unshare", "--mount", "sh", "-c", VIEW, "sh", str(folder), sshd]
        try:
            with daemon(words, folder / "sshd.log", programs, lambda: _answers(port)):
                yield {**base, "PATH": f"{folder}/bin:{base['PATH']}"}
        except DidNotStart as reason:
            raise Unavailable(f"sshd cannot run here: {reason}") from None


def _write(folder: Path, port: int, name: str, remote: Mapping[str, str]) -> None:
    for key in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    variables = " ".join(f'"{variable}={value}"' for variable, value in remote.items()) or "A=b"
    texts = {**ACCOUNTS, "server": SERVER, "client": CLIENT}
    for file, text in texts.items():
        (folder / file).write_text(text.format(port=port, folder=folder, name=name, variables=variables))
    wrapper = folder / "bin/ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/client "$@"\n')
    wrapper.chmod(0o755)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True
