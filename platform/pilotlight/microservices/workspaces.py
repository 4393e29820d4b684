"""An org's storage as a microservice gets it: where a model lies, which variables let it be read.

Credentials are references. What an org may refer to is bounded: its own variables and secrets, folders that the
operator has opened (PILOTLIGHT_WORKSPACE_ROOTS), and stores that media would be fetched from too; whoever has the
platform's own token may name anything. Pure, but for `check_stores`, which resolves names before a start.
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from pilotlight.errors import UsageError
from pilotlight.microservices import credentials
from pilotlight.microservices.media import web
from pilotlight.microservices.media.addresses import literal_refusal
from pilotlight.microservices.media.limits import ENV_WORKSPACES, Limits
from pilotlight.microservices.media.references import BUCKET, WebAddress
from pilotlight.microservices.media.references import web as parsed
from pilotlight.microservices.media.refusals import LOG, Refusal
from pilotlight.microservices.model import Workspace
from pilotlight.microservices.model_paths import HUB

# A workspace's credentials by the variables that the predictor's storage reads.
VARIABLES: Final[Mapping[str, str]] = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "sas_token": "AZURE_STORAGE_SAS_TOKEN",
}
SCHEMES: Final = ("s3://", "az://", "https://", "file:///", "/")
ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT")
# Names of hosts are made of these two.
REGION: Final = re.compile(r"[A-Za-z0-9_-]{0,64}")
ACCOUNT: Final = re.compile(r"([a-z0-9]{3,24})?")


class Access(Struct, frozen=True):
    """`plain` may be seen, `secret` has values and must not; both are variables of the microservice."""

    plain: Mapping[str, str]
    secret: Mapping[str, str]


def check(org: str, workspace: Workspace, limits: Limits, trusted: bool) -> None:
    """Raises with the field and what it must be. `trusted`: the operator itself says so."""
    if not workspace.uri.startswith(SCHEMES):
        raise UsageError(f"uri = {workspace.uri}, must begin with s3://, az://, https://, file:/// or /")
    if "@" in workspace.uri.partition("://")[2].partition("/")[0]:
        raise UsageError("uri has a user or a password in it, must be an address alone")
    _check_names(workspace)
    credentials.check(workspace)
    if trusted:
        return
    _check_addresses(workspace, limits)
    for name, reference in workspace.credentials.items():
        # A key of a mounted Secret has no slash; an org's name has no dot, so neither is the beginning of another's.
        if not reference.startswith((f"env:{own_variable(org)}", f"file:{org}/", f"file:{org}.")):
            raise UsageError(
                f"credentials.{name} must be env:{own_variable(org)}NAME, file:{org}/NAME or file:{org}.NAME"
            )
    folder = local(workspace.uri)
    # Batch jobs write into a workspace: a folder that is open for media is not one for results of everybody.
    if folder is not None and not any(_within(folder, root, org) for root in limits.workspaces):
        raise UsageError(
            f"uri = {workspace.uri}, must lie in a folder that the operator has opened for {org}",
            f"{ENV_WORKSPACES} = ROOT opens ROOT/{org}; or create it with the platform's own token",
        )


def _check_names(workspace: Workspace) -> None:
    """What a store's client puts into the name of a host must not be able to end that name."""
    scheme, _, rest = workspace.uri.partition("://")
    if scheme in {"s3", "az"} and not BUCKET.fullmatch(rest.partition("/")[0]):
        raise UsageError(f"uri = {workspace.uri}, must be {scheme}://bucket or {scheme}://bucket/path")
    if not REGION.fullmatch(workspace.region):
        raise UsageError(f"region = {workspace.region!r}, must be the name of a region, such as us-east-1")
    if not ACCOUNT.fullmatch(workspace.account):
        raise UsageError(f"account = {workspace.account!r}, must be 3 to 24 lower-case letters and digits")


def _check_addresses(workspace: Workspace, limits: Limits) -> None:
    """What can be told without asking for a name; names are judged when a model is started."""
    named = {"endpoint": workspace.endpoint, "uri": workspace.uri if workspace.uri.startswith("https://") else ""}
    for field, text in ((field, text) for field, text in named.items() if text):
        try:
            address = _address(text)
            web.check_listed(address, limits, trusted=True)
        except Refusal as error:
            raise UsageError(f"{field} = {text} {error.told}") from error
        if why := literal_refusal(address.host, limits.permitted()):
            raise UsageError(f"{field} = {text}: {why}", "the operator can permit it by PILOTLIGHT_MEDIA_NETWORKS")


def _address(text: str) -> WebAddress:
    if not text.startswith(("https://", "http://")):
        raise Refusal("is no address: write https://host")
    return parsed(text)


def check_stores(model: str, plain: Mapping[str, str], limits: Limits, resolver: web.Resolve = web.resolve) -> None:
    """Before each start, since names change: no host that a microservice reads its model from is private, unless it is
    permitted. `plain` is what `access` gave. Blocking."""
    read_from = [plain[name] for name in ENDPOINTS if name in plain]
    for text in [*read_from, *([model] if model.startswith(("https://", "http://")) else ())]:
        try:
            web.vouched(_address(text), limits, trusted=True, resolver=resolver)
        except Refusal as error:
            LOG.warning("a model's storage was refused: %s", error.why)
            raise UsageError(f"the model's storage {text.partition('?')[0]} {error.told}") from error


def own_variable(org: str) -> str:
    """How variables begin that an org may refer to. Two underscores end its name, which has no two hyphens together
    (records.ORG): none is the beginning of another."""
    return f"WORKSPACE_{org.upper().replace('-', '_')}__"


def local(uri: str) -> Path | None:
    """The folder, where it is one of this machine."""
    return Path(uri.removeprefix("file://")) if uri.startswith(("/", "file:///")) else None


def _within(path: Path, root: str, org: str) -> bool:
    return path.resolve().is_relative_to(Path(root).resolve() / org)


def locate(workspace: Workspace | None, artifact: str, trusted: bool = False) -> str:
    """The model's whole path or URI. Within the workspace, unless the operator says otherwise."""
    if not artifact:
        raise UsageError("artifact is missing: the job does not say where its model is")
    if artifact.startswith(HUB):
        return artifact
    base = workspace.uri.rstrip("/").removeprefix("file://") if workspace else ""
    if "://" in artifact or artifact.startswith("/"):
        whole = artifact.removeprefix("file://")
        if trusted or (base and whole.startswith(f"{base}/") and ".." not in PurePosixPath(whole).parts):
            return whole
        raise UsageError(f"artifact = {artifact}, must lie in the workspace {base or '(there is none)'}")
    if ".." in PurePosixPath(artifact).parts:
        raise UsageError(f"artifact = {artifact}, must not have .. in it")
    if not base:
        raise UsageError(f"artifact = {artifact} is relative, and the experiment has no workspace")
    return f"{base}/{artifact}"


def access(workspace: Workspace | None, environ: Mapping[str, str]) -> Access:
    """Raises where a credential is not there, by its reference."""
    if workspace is None:
        return Access({}, {})
    secret = {VARIABLES[name]: value for name, value in credentials.values(workspace, environ).items()}
    plain: dict[str, str] = {}
    if workspace.uri.startswith("s3://"):
        plain["AWS_REGION"] = workspace.region
        plain |= {"AWS_ENDPOINT_URL": workspace.endpoint} if workspace.endpoint else {}
        plain |= {"AWS_SKIP_SIGNATURE": "true"} if not secret else {}
    if workspace.uri.startswith("az://"):
        plain |= {"AZURE_STORAGE_ACCOUNT_NAME": workspace.account} if workspace.account else {}
        plain |= {"AZURE_STORAGE_ENDPOINT": workspace.endpoint} if workspace.endpoint else {}
        plain |= {"AZURE_SKIP_SIGNATURE": "true"} if not secret else {}
    return Access(plain, secret)
