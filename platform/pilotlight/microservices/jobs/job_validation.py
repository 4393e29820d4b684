"""Check of a job's values that programs and shells of targets get."""

import re
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.microservices.registry.records import Job, check_pattern

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{1,62}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/][A-Za-z0-9._/:@+#-]*")
_OPTION: Final = re.compile(r"(?:[A-Za-z0-9_./@][A-Za-z0-9_.:/,@=+ -]*)?")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def validate_job(job: Job) -> Job:
    """Return the job. Raise for values that a program or a shell could misinterpret."""
    for name in (*job.env, *job.secrets):
        if not _NAME.fullmatch(name):
            raise UsageError(f"env: {name!r} is no name of a variable, must be letters, digits and _")
    if wrong := [name for name, value in job.env.items() if "\0" in value]:
        raise UsageError(f"env.{wrong[0]} holds a zero byte, which no environment can carry")
    if "\0" in job.command:
        raise UsageError("command holds a zero byte, which no program can be given")
    check_pattern(_ID, "job id", job.id, "letters, digits and dashes, as a uuid4 is")
    check_pattern(_PLAIN, "image", job.image, "a name such as nvcr.io/nvidia/tao:6, without blanks")
    for name, value in job.options.items():
        check_pattern(_OPTION, name, value, "letters, digits and any of _ . : / , @ = + -")
    return job
