"""`platformctl doctor`: check whether this machine or a cluster can run services, with fixes."""

from collections.abc import Iterator

import click

from pilotlight.errors import PlatformError, UsageError
from pilotlight.targets.kubernetes.target import KubernetesTarget
from pilotlight.targets.local.home_directory import home
from platformctl import output, targets
from platformctl.doctor import cluster_checks, local_checks

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@targets.options
@output.formats("table", "json")
def doctor(service_options: targets.ServiceOptions) -> int:
    """Check this machine: Python, runtimes, GPUs, ports, disk, limits, microservices. Ends with 1 where one fails.

    With --target kubernetes the cluster: Knative, KEDA, gateways, rights in the namespace, metrics, GPUs.

    Example: platformctl doctor --target kubernetes -n models
    """
    if service_options.target not in ("local", "kubernetes"):
        raise UsageError(f"doctor knows no checks of --target {service_options.target}", "use local or kubernetes")
    findings = list(_of_machine() if service_options.target == "local" else _of_cluster(service_options))
    documents = [
        {"level": each.level, "check": each.check, "message": each.message, "fix": each.fix} for each in findings
    ]
    width = max(len(each.check) for each in findings)
    lines = []
    for each in findings:
        level = click.style(f"{each.level:<4}", fg=COLOURS[each.level])
        lines.append(f"{level}  {each.check:<{width}}  {each.message}")
        if each.fix:
            lines.append(f"{'':4}  {'':{width}}  → {each.fix}")
    output.data({"checks": documents}, lines)
    return 1 if any(each.level == "fail" for each in findings) else 0


def _of_machine() -> Iterator[local_checks.Finding]:
    yield from local_checks.findings(home())
    yield from local_checks.microservice_findings(home())


def _of_cluster(service_options: targets.ServiceOptions) -> Iterator[local_checks.Finding]:
    try:
        target = service_options.connect_read_only()
    except PlatformError as error:
        yield local_checks.Finding("fail", "cluster", str(error), error.hint)
        return
    assert isinstance(target, KubernetesTarget)
    yield from cluster_checks.findings(target.cluster, service_options.namespace)
