"""Whether this machine has an IPv6 loopback: containers often have none."""

import socket


def available() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
