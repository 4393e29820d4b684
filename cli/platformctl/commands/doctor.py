"""`platformctl doctor`: whether this machine, or a cluster, can run services, and what to do where it cannot."""

from collections.abc import Iterator

import click

from pilotlight.errors import PlatformError, UsageError
from platformctl import checks, output, targets

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@targets.options
@output.formats("table", "json")
def doctor(at: targets.At) -> int:
    """Check this machine: Python, runtimes, GPUs, ports, disk, limits, microservices. Ends with 1 where one fails.

    With --target kubernetes the cluster: Knative, KEDA, gateways, rights in the namespace, metrics, GPUs.

    Example: platformctl doctor --target kubernetes -n models
    """
    found = list(_findings(at))
    told = [{"level": each.level, "check": each.check, "message": each.message, "fix": each.fix} for each in found]
    width = max(len(each.check) for each in found)
    lines = [line for each in found for line in _lines(each, width)]
    output.data({"checks": told}, lines)
    return 1 if any(each.level == "fail" for each in found) else 0


def _findings(at: targets.At) -> Iterator[checks.Finding]:
    if at.target == "local":
        return _of_machine()
    if at.target != "kubernetes":
        raise UsageError(f"doctor knows no checks of --target {at.target}", "use local or kubernetes")
    return _of_cluster(at)


def _of_machine() -> Iterator[checks.Finding]:
    from pilotlight.targets.local.home import home
    from platformctl import microservice_checks

    yield from checks.findings(home())
    yield from microservice_checks.findings(home())


def _of_cluster(at: targets.At) -> Iterator[checks.Finding]:
    from pilotlight.targets.kubernetes.target import KubernetesTarget
    from platformctl import cluster_checks

    try:
        target = at.look()
    except PlatformError as error:
        yield checks.Finding("fail", "cluster", str(error), error.hint)
        return
    assert isinstance(target, KubernetesTarget)
    yield from cluster_checks.findings(target.cluster, at.namespace)


def _lines(finding: checks.Finding, width: int) -> list[str]:
    level = click.style(f"{finding.level:<4}", fg=COLOURS[finding.level])
    first = f"{level}  {finding.check:<{width}}  {finding.message}"
    return [first, *([f"{'':4}  {'':{width}}  → {finding.fix}"] if finding.fix else [])]
