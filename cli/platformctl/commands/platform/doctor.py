"""`platformctl doctor`: check whether a target can run services, with fixes."""

import os
from collections.abc import Iterator
from typing import cast

import click

from pilotlight.errors import PlatformError, UsageError
from pilotlight.targets import table
from pilotlight.targets.kubernetes.target import KubernetesTarget
from pilotlight.targets.local.client import LocalTarget
from pilotlight.targets.local.control_process_launcher import living
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.target import Finding
from platformctl import output, targets
from platformctl.doctor import cluster_checks, local_checks

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@targets.options
@targets.TARGET_OPTION
@output.formats("table", "json")
def doctor(service_options: targets.ServiceOptions) -> int:
    """Check this machine: Python, runtimes, GPUs, ports, disk, limits. Exit code 1: a check failed.

    With --target kubernetes it checks the cluster: our image, Knative, KEDA, gateways, permissions, metrics, GPUs.
    With another target it checks the daemon, queue or account; docker and slurm from the control process.

    Example: platformctl doctor --target kubernetes -n models
    """
    findings = list(_findings(service_options))
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


def _findings(service_options: targets.ServiceOptions) -> Iterator[Finding]:
    name = service_options.target
    module, options = table.module(name), targets.options_of(name)
    if name == targets.LOCAL:
        yield from local_checks.findings(home())
        yield from local_checks.microservice_findings(home())
    elif name == "kubernetes":
        yield from _of_cluster(service_options)
    elif name in targets.EMBEDDED and living(home()) is not None:
        yield from cast(LocalTarget, service_options.connect_read_only()).findings()
    elif module is not None:
        yield from module.findings(os.environ, options)
    else:
        raise UsageError(f"doctor has no checks of --target {name}, which another package adds", "use its own")


def _of_cluster(service_options: targets.ServiceOptions) -> Iterator[Finding]:
    try:
        target = service_options.connect_read_only()
    except PlatformError as error:
        yield Finding("fail", "cluster", str(error), error.hint)
        return
    assert isinstance(target, KubernetesTarget)
    registry = os.environ.get("PILOTLIGHT_IMAGE_REGISTRY", "")
    yield from cluster_checks.findings(target.cluster, service_options.namespace, registry)
