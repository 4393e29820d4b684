"""A target module as `targets/table.py` asks for, for tests of what all of them share."""

from collections.abc import Iterator, Mapping

from pilotlight.targets.options import Option
from pilotlight.targets.target import Finding

OPTIONS = (
    Option("partition", "partition of the jobs", required=True, variables=("SAMPLE_PARTITION",)),
    Option("network", "network of the container"),
)


def findings(environ: Mapping[str, str], options: Mapping[str, str]) -> Iterator[Finding]:
    yield Finding("ok", "daemon", f"answers in {options.get('partition', 'no partition')}")
    if "SAMPLE_BROKEN" in environ:
        yield Finding("fail", "account", "is unknown", "ask for one")
