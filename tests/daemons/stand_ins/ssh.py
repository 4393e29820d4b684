"""Stands in for `ssh` to machines that are this one: options as OpenSSH has them, `-G`, `-N -L`, or a command.

A command gets an environment of its own, as on a machine elsewhere; what the caller has in its own does not travel.
Hosts that SSH_STAND_IN does not list are unreachable: exit code 255. SSH_HOSTNAME is the address of all others.
"""

import getopt
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from fnmatch import fnmatch

REMOTE = ("PATH", "DOCKER_HOST", "LANG")


def main() -> None:
    options, (host, *words) = getopt.getopt(sys.argv[1:], "GNTo:L:")
    flags = dict(options)
    if "-G" in flags:
        print(f"user ubuntu\nhostname {os.environ.get('SSH_HOSTNAME', '127.0.0.1') if known(host) else host}\nport 22")
        return
    if not known(host):
        sys.exit(print(f"ssh: connect to host {host} port 22: Connection timed out", file=sys.stderr) or 255)
    forwards = [value for name, value in options if name == "-L"]
    for told in forwards[1:]:
        threading.Thread(target=forward, args=(told,), daemon=True).start()
    if forwards:
        forward(forwards[0])
    env = {name: os.environ[name] for name in REMOTE if name in os.environ}
    sys.exit(subprocess.run(["/bin/bash", "-c", " ".join(words)], env=env, check=False).returncode)


def known(host: str) -> bool:
    return any(fnmatch(host, each) for each in os.environ.get("SSH_STAND_IN", "").split(","))


def forward(told: str) -> None:
    """NEAR:FAR, each HOST:PORT or the path of a unix socket."""
    near, far = re.fullmatch(r"(/[^:]+|[^:]+:\d+):(/.+|[^:]+:\d+)", told).groups()
    with listening(near) as listener:
        while True:
            mine, _ = listener.accept()
            try:
                theirs = connected(far)
            except OSError:
                mine.close()
                continue
            for source, sink in ((mine, theirs), (theirs, mine)):
                threading.Thread(target=carry, args=(source.recv, sink), daemon=True).start()


def listening(address: str) -> socket.socket:
    """At HOST:PORT, or at the path of a unix socket, as with StreamLocalBindUnlink."""
    if not address.startswith("/"):
        host, _, port = address.rpartition(":")
        return socket.create_server((host, int(port)))
    if os.path.exists(address):
        os.unlink(address)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    return listener


def connected(address: str) -> socket.socket:
    if not address.startswith("/"):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    return connection


def carry(receive: Callable[[int], bytes], sink: socket.socket) -> None:
    try:
        while data := receive(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        sink.close()


main()
