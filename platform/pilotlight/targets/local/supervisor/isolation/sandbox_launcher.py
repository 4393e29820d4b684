"""Start of a command in a sandbox: `python -I -m pilotlight.targets.local.supervisor.isolation.sandbox_launcher PLAN`.

The launcher joins a control group, enters namespaces and forks. The child mounts what the plan names and nothing else,
gives up its privileges and runs the command as PID 1. The launcher forwards signals, exits with the command's status,
and takes the sandbox along when it is killed. Linux only.
"""

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from msgspec import Struct, json

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_SLAVE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x80000
MNT_DETACH: Final = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
SYS_MOUNT_SETATTR: Final = 442  # the same number on every architecture
SYS_OPENAT2, RESOLVE_NO_SYMLINKS = 437, 4  # likewise
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 0x1, 0x2, 0x4
SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_RESTRICT_SELF = 444, 446  # likewise
SCOPES: Final = 3  # abstract unix sockets, signals
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
OLD_ROOT: Final = "/.old"
TMPFS: Final = ("/tmp", "/dev/shm")  # noqa: S108 - private ones, counted as memory of the sandbox
# Sets the limits inside: those of a process that makes a user namespace count all processes of its user.
_LIMITED: Final = "import os,resource,sys;from pilotlight.targets.local.supervisor.isolation.sandbox_launcher import scope;scope();[resource.setrlimit(int(n),(int(v),)*2) for n,v in (w.split('=') for w in sys.argv[1].split(','))];os.execv(sys.argv[2],sys.argv[2:])"  # noqa: E501
_libc = ctypes.CDLL(None, use_errno=True)


class Plan(Struct, frozen=True):
    """What runs in which kind of sandbox, and what it may see. Mounts are pairs of source and target."""

    command: tuple[str, ...]
    uid: int  # own uid of the sandbox, where this process is root; else that of this process, in a user namespace
    read_only: tuple[tuple[str, str], ...]
    writable: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] = ()
    bubblewrap: str = ""  # path of the program, where that makes the sandbox
    home: str = ""  # whose control groups apply
    job: str = ""
    memory: int = 0  # bytes; 0: no limits
    cpus: float = 0.0
    processes: int = 0  # threads included


def main(plan: Plan) -> int:
    bounds = _limits(plan)
    if not plan.bubblewrap:
        _enter_namespaces()
    child = os.fork()
    if child == 0:
        _run(plan, bounds)

    def forward(number: int, _: FrameType | None) -> None:
        # Bubblewrap ends by a signal that its command should get.
        children = Path(f"/proc/{child}/task/{child}/children").read_text() if plan.bubblewrap else str(child)
        for pid in map(int, children.split()):
            os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _limits(plan: Plan) -> dict[int, int]:
    """Join the control group of the job, for all that is started; return the resource limits.

    Without control groups each process has the memory limit for itself.
    """
    bounds = {resource.RLIMIT_CORE: 0}
    if plan.memory:
        from pilotlight.targets.local.home_directory import Home
        from pilotlight.targets.local.supervisor.isolation.cgroups import Limits

        groups = Limits(Home(Path(plan.home)))
        groups.confine(plan.job, os.getpid(), plan.memory, plan.cpus)
        bounds |= {resource.RLIMIT_NPROC: plan.processes}
        bounds |= {resource.RLIMIT_DATA: plan.memory} if groups.name == "watchdog" else {}
    return bounds


def _enter_namespaces() -> None:
    flags, uid, gid = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS, os.geteuid(), os.getegid()
    _call("unshare", flags if uid == 0 else flags | CLONE_NEWUSER)
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _run(plan: Plan, bounds: dict[int, int]) -> NoReturn:
    """Run the command in place of this process."""
    try:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        if plan.bubblewrap:
            os.execv(plan.bubblewrap, bubblewrap_arguments(plan, bounds))  # noqa: S606
        _mount(plan)
        for number, value in bounds.items():
            resource.setrlimit(number, (value, value))
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(plan.uid, plan.uid, plan.uid)
            os.setresuid(plan.uid, plan.uid, plan.uid)
        _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)  # a change of the uid clears it
        scope()
        os.execv(plan.command[0], plan.command)  # noqa: S606
    except OSError as error:
        os.write(2, f"the sandbox cannot be created: {error}\n".encode())
    os._exit(126)


def scope() -> None:
    """Close abstract unix sockets of others, which the shared network shows: without root, the uid opens some of them.

    By Landlock, of Linux 6.12 or newer; needs PR_SET_NO_NEW_PRIVS.
    """
    rules = (ctypes.c_uint64 * 3)(0, 0, SCOPES)
    descriptor = _libc.syscall(SYS_LANDLOCK_CREATE_RULESET, ctypes.byref(rules), ctypes.sizeof(rules), 0)
    if descriptor >= 0:
        _call("syscall", SYS_LANDLOCK_RESTRICT_SELF, descriptor, 0)
        os.close(descriptor)


def _mount(plan: Plan) -> None:
    """Replace the file system by an empty one with the plan's mounts, /proc of this PID namespace and private TMPFS."""
    # An org may put a link in place of its model after that was checked.
    opened = {source: _open_without_links(source) for source, _ in plan.read_only}
    _bind("", "/", MS_SLAVE | MS_REC)
    _call("mount", b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=755,size=1m")
    os.mkdir("/tmp" + OLD_ROOT)  # noqa: S108
    _call("pivot_root", b"/tmp", b"/tmp" + OLD_ROOT.encode())
    os.chdir("/")
    for path in TMPFS:
        os.makedirs(path)
        size = f",size={plan.memory // 2}" if plan.memory else ""
        _call("mount", b"tmpfs", path.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777{size}".encode())
    os.mkdir("/proc")
    _call("mount", b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
    for source, target in (*plan.read_only, *plan.writable, *((device, device) for device in plan.devices)):
        path = f"/proc/self/fd/{opened[source]}" if source in opened else OLD_ROOT + source
        _make_target(path, target)
        _bind(path, target, MS_BIND | MS_REC)
    for descriptor in opened.values():
        os.close(descriptor)
    for _, target in plan.read_only:
        _restrict(target, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, AT_RECURSIVE)
    for _, target in plan.writable:
        _restrict(target, ATTR_NOSUID | ATTR_NODEV, AT_RECURSIVE)
    os.symlink("/proc/self/fd", "/dev/fd")
    _call("umount2", OLD_ROOT.encode(), MNT_DETACH)
    os.rmdir(OLD_ROOT)
    _restrict("/", ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, 0)


def _open_without_links(path: str) -> int:
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS)
    size = ctypes.sizeof(how)
    descriptor = int(_libc.syscall(SYS_OPENAT2, AT_FDCWD, os.fsencode(path), ctypes.byref(how), size))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return descriptor


def _make_target(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))


def _bind(source: str, target: str, flags: int) -> None:
    _call("mount", os.fsencode(source), os.fsencode(target), None, flags, None)


def _restrict(target: str, attributes: int, flags: int) -> None:
    """Set attributes of a mount, and with AT_RECURSIVE of those below it."""
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    size = ctypes.sizeof(wanted)
    _call("syscall", SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), flags, ctypes.byref(wanted), size)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}", str(arguments[1]) if name == "mount" else None)


def bubblewrap_arguments(plan: Plan, bounds: dict[int, int]) -> list[str]:
    """Return the command line of bubblewrap for the same sandbox."""
    mounts = [word for source, target in plan.read_only for word in ("--ro-bind", source, target)]
    mounts += [word for source, target in plan.writable for word in ("--bind", source, target)]
    mounts += [word for device in plan.devices for word in ("--dev-bind-try", device, device)]
    size = ["--size", str(plan.memory // 2)] if plan.memory else []
    tmpfs = [word for path in TMPFS for word in (*size, "--tmpfs", path)]
    words = ",".join(f"{number}={value}" for number, value in bounds.items())
    spaces = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1", "--die-with-parent"]
    return [
        plan.bubblewrap, *spaces, "--new-session", "--proc", "/proc", "--dev", "/dev", *tmpfs, *mounts, "--chdir", "/",
        "--remount-ro", "/", "--", sys.executable, "-I", "-c", _LIMITED, words, *plan.command,
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(json.decode(sys.argv[1], type=Plan)))
