"""The attacker inside a sandbox: tries what a model's code must not do, and prints what came of it as JSON.

Copied into the model's folder and run there, so it has the standard library alone. At last it takes memory, or files
and then processes, until it is stopped.
"""

import ctypes
import json
import os
import socket
import sys


def attempt(act):
    try:
        return repr(act())
    except Exception as error:
        return "refused" if isinstance(error, (OSError, StopIteration)) else repr(error)


def read(path):
    with open(path) as file:
        return file.read(200)


def write(path):
    with open(path, "w") as file:
        return file.write("owned")


def connect(path):
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect(path)


def link_out(target):
    os.symlink(target, "/tmp/link")
    return os.listdir("/tmp/link")


def raw(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)
    return "done"


def forbidden(home, other, model, victim, unix_socket, abstract):
    ptrace_attach, bind, remount = 16, 4096, 32
    return {
        "read the token": attempt(lambda: read(f"{home}/token")),
        "list the home": attempt(lambda: os.listdir(home)),
        "read another org's model": attempt(lambda: read(f"{other}/secret")),
        "link to another org": attempt(lambda: link_out(other)),
        "read the shadow file": attempt(lambda: read("/etc/shadow")),
        "write to the model": attempt(lambda: write(f"{model}/owned")),
        "write to the system": attempt(lambda: write("/usr/owned")),
        "write to the predictor": attempt(lambda: write(f"{sys.prefix}/owned")),
        "write to the root": attempt(lambda: write("/owned")),
        "remount": attempt(lambda: raw("mount", None, b"/usr", None, bind | remount, None)),
        "kill": attempt(lambda: os.kill(victim, 9)),
        "ptrace": attempt(lambda: raw("ptrace", ptrace_attach, victim, None, None)),
        "read its memory": attempt(lambda: read(f"/proc/{victim}/maps")),
        "become root": attempt(lambda: os.setuid(0) if os.getuid() else raw("chroot", b"/tmp")),
        "connect to the platform's socket": attempt(lambda: connect(unix_socket)),
        "connect to an abstract socket": attempt(lambda: connect(abstract)),
        "write to a control group": attempt(lambda: write("/sys/fs/cgroup/memory/cgroup.procs")),
        "raw disk": attempt(
            lambda: next(read(f"/dev/{name}") for name in os.listdir("/dev") if name[:2] in ("sd", "vd"))
        ),
    }


def seen():
    status = dict(line.split(":\t", 1) for line in read_all("/proc/self/status").splitlines() if ":\t" in line)
    return {
        "uid": os.getuid(),
        "capabilities": status["CapEff"],
        "no_new_privs": status["NoNewPrivs"],
        "processes": [name for name in os.listdir("/proc") if name.isdecimal()],
        "environ": sorted(os.environ),
        "tmp": attempt(lambda: write("/tmp/mine")),
        "cache": attempt(lambda: write("/cache/mine")),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
    }


def read_all(path):
    with open(path) as file:
        return file.read()


def own_namespace():
    """Gain capabilities in a user namespace of its own, to make what is mounted here writable."""
    raw("unshare", 0x10020000)
    return attempt(lambda: raw("mount", None, b"/usr", None, 4096 | 32, None)), attempt(lambda: write("/usr/owned"))


def take_memory():
    taken = []
    while True:
        taken.append(bytearray(os.urandom(1 << 20) * 16))
        print(json.dumps({"mib": 16 * len(taken)}), flush=True)


def take_files():
    with open("/tmp/full", "wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 20)):
                pass
        except OSError as error:
            return {"mib": file.tell() >> 20, "error": error.strerror}


def take_processes():
    count = 0
    read_end, _ = os.pipe()
    try:
        while True:
            if os.fork() == 0:
                os.read(read_end, 1)
            count += 1
    except OSError as error:
        return {"count": count, "error": error.strerror}


if __name__ == "__main__":
    if sys.argv[1] == "memory":
        take_memory()
    told = {"forbidden": forbidden(**json.loads(sys.argv[1])), "seen": seen()}
    told |= {"files": take_files(), "processes": take_processes()}
    told["forbidden"]["own namespace"] = "refused" if "done" not in attempt(own_namespace) else "left"
    print(json.dumps(told), flush=True)
