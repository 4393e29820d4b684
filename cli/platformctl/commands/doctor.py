"""`platformctl doctor`: whether this machine can run services, and what to do where it cannot."""

import click

from platformctl import checks, output

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@output.formats("table", "json")
def doctor() -> int:
    """Check this machine: Python, runtimes, GPUs, ports, disk, limits. Ends with 1 where something cannot work.

    Example: platformctl doctor
    """
    from pilotlight.targets.local.home import home

    found = list(checks.findings(home()))
    told = [{"level": each.level, "check": each.check, "message": each.message, "fix": each.fix} for each in found]
    width = max(len(each.check) for each in found)
    lines = [line for each in found for line in _lines(each, width)]
    output.data({"checks": told}, lines)
    return 1 if any(each.level == "fail" for each in found) else 0


def _lines(finding: checks.Finding, width: int) -> list[str]:
    level = click.style(f"{finding.level:<4}", fg=COLOURS[finding.level])
    first = f"{level}  {finding.check:<{width}}  {finding.message}"
    return [first, *([f"{'':4}  {'':{width}}  → {finding.fix}"] if finding.fix else [])]
