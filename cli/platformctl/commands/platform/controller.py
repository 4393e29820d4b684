"""`platformctl controller`: reconcile the InferenceServices of a cluster."""

from typing import TYPE_CHECKING

import click

from pilotlight.errors import PlatformError, UsageError
from platformctl import options, output, targets

if TYPE_CHECKING:
    from pilotlight.controller.settings import ControllerSettings
    from pilotlight.targets.kubernetes.client import Cluster

KINDS = {"ome.io/InferenceService": "ome.io/v1beta1", "serving.kserve.io/InferenceService": "serving.kserve.io/v1beta1"}


@click.command()
@click.option("-n", "--namespace", "namespaces", multiple=True, metavar="NAME", help="Repeatable. [default: all]")
@click.option(
    "--kind", "chosen", multiple=True, type=click.Choice(list(KINDS)), help="Repeatable. [default: all of our CRDs]"
)
@click.option("--resync", default="10m", show_default=True, metavar="DURATION", help="Between two lists of everything.")
@click.option("--workers", type=click.IntRange(1, 64), default=8, show_default=True, help="Services at the same time.")
@click.option(
    "--capabilities", type=click.Path(dir_okay=False), help="What the cluster offers, instead of what it says."
)
@options.HOST_TEMPLATE
@click.option("--lease-namespace", default="pilotlight-system", show_default=True, help="Of the leader's Lease.")
@click.option(
    "--foreign-crds", is_flag=True, help="Act on CRDs that KServe or OME installed; their controllers must be off."
)
@click.option(
    "--liveness", default="", metavar="URL", help="Where it answers probes, such as http://0.0.0.0:8080/healthz."
)
@click.option(
    "--webhook-port", type=click.IntRange(0, 65535), default=0, help="Of the admission webhook. [default: none]"
)
@click.option("--webhook-cert", type=click.Path(exists=True, dir_okay=False), help="Its certificate chain, PEM.")
@click.option("--webhook-key", type=click.Path(exists=True, dir_okay=False), help="Its key, PEM.")
@targets.context_option
def controller(
    namespaces: tuple[str, ...], chosen: tuple[str, ...], resync: str, workers: int, capabilities: str | None,
    host_template: str | None, lease_namespace: str, foreign_crds: bool, liveness: str, webhook_port: int,
    webhook_cert: str | None, webhook_key: str | None,
) -> None:  # fmt: skip
    """Make the services of a cluster run as its InferenceServices say, until a signal ends it.

    Needs the CRDs of the chart inference-platform, which also runs it: --set controller.enabled=true.

    Example: platformctl controller -n models --resync 10m
    """
    import logging

    from pilotlight.controller.settings import ControllerSettings
    from pilotlight.k8s.quantities import parse_duration
    from pilotlight.targets.kubernetes.client import Cluster, connect

    try:
        import kopf  # noqa: F401
        import kubernetes  # noqa: F401
    except ModuleNotFoundError as error:
        raise PlatformError(f"{error.name} is not installed", "pip install 'pilotlight[controller]'") from error
    resync_s = parse_duration(resync)
    if not resync_s or resync_s < 0:
        raise UsageError(f"--resync {resync}, must be a duration above zero such as 10m")
    if webhook_port and not (webhook_cert and webhook_key):
        raise UsageError("--webhook-port needs --webhook-cert and --webhook-key")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    quiet = ("kopf.objects", "urllib3")  # retries and ends of tasks, which are no news
    for name in ("kopf", "leaderelection", "aiohttp", *quiet):
        logging.getLogger(name).setLevel("ERROR" if name in quiet else "WARNING")
    cluster = Cluster(connect(targets.context()))
    offered = options.read_capabilities(capabilities) if capabilities else {}
    offered |= {"host_template": host_template} if host_template else {}
    settings = ControllerSettings(
        _versions(cluster, chosen, foreign_crds), namespaces, offered, resync_s, workers, lease_namespace, liveness,
        webhook_port, webhook_cert or "", webhook_key or "",
    )  # fmt: skip
    _run(cluster, settings)


def _run(cluster: "Cluster", settings: "ControllerSettings") -> None:
    """Reconcile while this process leads."""
    import asyncio
    import os

    from pilotlight.controller.leader import Leadership
    from pilotlight.controller.operator import Operator

    # Without the Lease another one acts; as client-go, the process ends at once and is started again.
    leadership = Leadership(cluster, settings, lambda: os._exit(1))
    leadership.acquire()
    where = ", ".join(settings.namespaces) or "all namespaces"
    output.note(f"reconciles InferenceServices of {', '.join(settings.versions)} in {where}")
    try:
        asyncio.run(Operator(cluster.connection, settings).run())
    finally:
        leadership.release()


def _versions(cluster: "Cluster", chosen: tuple[str, ...], foreign: bool) -> tuple[str, ...]:
    """Return the API versions to act on. Raise PlatformError for CRDs of others: two controllers would fight."""
    from pilotlight.targets.kubernetes.inferenceservice_mirror import KIND, is_our_crd

    wanted = [KINDS[each] for each in chosen or KINDS]
    ours = [each for each in wanted if cluster.kind(each, KIND) is not None and (foreign or is_our_crd(cluster, each))]
    if not ours or (chosen and ours != wanted):
        hint = (
            "install the chart's with crds.install=true; for those of KServe or OME turn their controller off and add"
        )
        missing = ", ".join(each for each in wanted if each not in ours)
        raise PlatformError(f"the cluster has no CRD of ours for {KIND} of {missing}", f"{hint} --foreign-crds")
    return tuple(ours)
