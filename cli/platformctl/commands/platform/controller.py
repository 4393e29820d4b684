"""`platformctl controller`: reconcile the InferenceServices of a cluster."""

from typing import TYPE_CHECKING

import click

from pilotlight.errors import PlatformError, UsageError
from pilotlight.wire.environments.install_command import install_command
from platformctl import options, output, targets

if TYPE_CHECKING:
    from pilotlight.controller.settings import ControllerSettings
    from pilotlight.targets.kubernetes.client import Cluster
    from pilotlight.targets.kubernetes.inferenceservice_mirror import Kind

KINDS = (
    "ome.io/InferenceService", "serving.kserve.io/InferenceService", "serving.kserve.io/LLMInferenceService",
    "serving.kserve.io/InferenceGraph",
)  # fmt: skip


@click.command()
@click.option("-n", "--namespace", "namespaces", multiple=True, metavar="NAME", help="Repeatable. [default: all]")
@click.option("--kind", "chosen", multiple=True, type=click.Choice(KINDS), help="Repeatable. [default: all our CRDs]")
@click.option("--resync", default="10m", show_default=True, metavar="DURATION", help="Time between two full lists.")
@click.option(
    "--workers", type=click.IntRange(1, 64), default=8, show_default=True, help="Services reconciled at once."
)
@click.option("--capabilities", type=click.Path(dir_okay=False), help="What the cluster offers, instead of discovery.")
@options.HOST_TEMPLATE
@click.option("--lease-namespace", default="pilotlight-system", show_default=True, help="Of the leader's Lease.")
@click.option(
    "--foreign-crds", is_flag=True, help="Act on CRDs that KServe or OME installed; their controllers must be off."
)
@click.option("--liveness", default="", metavar="URL", help="Liveness endpoint, such as http://0.0.0.0:8080/healthz.")
@click.option("--webhook-port", type=click.IntRange(0, 65535), default=0, help="Admission webhook. [default: none]")
@click.option("--webhook-cert", type=click.Path(exists=True, dir_okay=False), help="Certificate of the webhook, PEM.")
@click.option("--webhook-key", type=click.Path(exists=True, dir_okay=False), help="Key of the webhook, PEM.")
@click.option("--remove-finalizers", is_flag=True, help="Remove our finalizers from all documents and exit.")
@targets.context_option
def controller(
    namespaces: tuple[str, ...], chosen: tuple[str, ...], resync: str, workers: int, capabilities: str | None,
    host_template: str | None, lease_namespace: str, foreign_crds: bool, liveness: str, webhook_port: int,
    webhook_cert: str | None, webhook_key: str | None, remove_finalizers: bool,
) -> None:  # fmt: skip
    """Reconcile the InferenceServices of a cluster, until a signal ends it.

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
        raise PlatformError(f"{error.name} is not installed", install_command("controller")) from error
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
        _kinds(cluster, chosen, foreign_crds), namespaces, offered, resync_s, workers, lease_namespace, liveness,
        webhook_port, webhook_cert or "", webhook_key or "",
    )  # fmt: skip
    (_remove_finalizers if remove_finalizers else _run)(cluster, settings)


def _remove_finalizers(cluster: "Cluster", settings: "ControllerSettings") -> None:
    """Remove the finalizer from all documents; services that were being deleted are deleted, others run on."""
    from pilotlight.errors import Conflict, NotFound
    from pilotlight.targets.kubernetes import controller_finalizer
    from pilotlight.targets.kubernetes.target import KubernetesTarget

    if any(controller_finalizer.is_controller_alive(cluster, each) for each in settings.namespaces or ("",)):
        message = "a controller runs, which would set its finalizers again"
        raise Conflict(message, "delete it first: helm uninstall, or controller.enabled=false")
    listed = [
        each for kind in settings.kinds for home in settings.namespaces or (None,) for each in cluster.list(*kind, home)
    ]
    for document in filter(controller_finalizer.has_finalizer, listed):
        metadata = document["metadata"]
        key = (str(metadata["namespace"]), str(metadata["name"]))
        try:
            note = KubernetesTarget(cluster).delete(key) if "deletionTimestamp" in metadata else ""
        except NotFound:
            note = ""  # nothing is left of its service
        if not note:
            controller_finalizer.remove_finalizer(cluster, document)
        output.note(note or f"{'/'.join(key)}: the finalizer of its {document['kind']} was removed")


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
    kinds = ", ".join(f"{kind}s of {version}" for version, kind in settings.kinds)
    output.note(f"reconciles {kinds} in {where}")
    try:
        asyncio.run(Operator(cluster.connection, settings).run())
    finally:
        leadership.release()


def _kinds(cluster: "Cluster", chosen: tuple[str, ...], foreign: bool) -> "tuple[Kind, ...]":
    """Return the kinds to act on. Raise PlatformError for CRDs of others: two controllers would fight."""
    from pilotlight.targets.kubernetes.inferenceservice_mirror import SERVICE_KINDS, is_our_crd, name_of

    wanted = [each for each in SERVICE_KINDS if not chosen or name_of(each) in chosen]
    ours = [each for each in wanted if cluster.kind(*each) is not None and (foreign or is_our_crd(cluster, each))]
    if not ours or (chosen and ours != wanted):
        hint = (
            "install the chart's with crds.install=true; for those of KServe or OME turn their controller off and add"
        )
        missing = ", ".join(f"{kind} of {version}" for version, kind in wanted if (version, kind) not in ours)
        raise PlatformError(f"the cluster lacks Pilotlight's CRD for {missing}", f"{hint} --foreign-crds")
    return tuple(ours)
