"""Registry, platforms, platform flags, views and logs shared by the commands of `platformctl microservice`."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from msgspec import to_builtins

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.microservices.inference import client
from pilotlight.microservices.inference.client import LOGS, PATH, TENSORS
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry import container_command, model_kinds
from pilotlight.microservices.registry.records import PLATFORMS, Entry, PlatformStatus
from pilotlight.microservices.registry.registry_file import Registry, RegistryState, registry
from pilotlight.targets import options as target_options
from pilotlight.targets import secret_redaction
from pilotlight.targets.options import Option
from platformctl import output

JOB: Final = click.argument("job_id", required=False, default="")
ARCH: Final = click.option(
    "--arch", "network_arch", default="", metavar="NETWORK_ARCH", help="Select the microservice of this network."
)
OURS: Final = "pilotlight"
START: Final = "platformctl microservice start"
METADATA_TIMEOUT_S: Final = 10.0
HIDDEN: Final = "platform_job_id"  # internal to the platform
POLL_S: Final = 1.0
ENDED: Final = ("failed", "stopped", "gone")
MISSED: Final = "lines between were written faster than they were read"
ReadStatus = Callable[[], PlatformStatus]
Note = Callable[[str], None]


def takes_tensors(network_arch: str, model_path: str = "") -> bool:
    """Whether the network takes tensors. For `pilotlight` the local model files decide."""
    if network_arch == OURS:
        path = Path(model_path or "/nowhere")
        return path.suffix == ".onnx" or any(file for each in ("*.onnx", "*/*.onnx") for file in path.glob(each))
    return network_arch in model_kinds.networks() and model_kinds.schema(network_arch).protocol == "tensors"


def is_tensor_request(network_arch: str, body: Mapping[str, Any]) -> bool:
    """Whether a body is a V2 request for the predictor; other containers have no V2."""
    return (
        "inputs" in body and "messages" not in body and container_command.arch(network_arch, os.environ).command == OURS
    )


def refuse_prompt(network_arch: str) -> None:
    """Raise UsageError for a network without chat, before prompting or sending."""
    if network_arch != OURS and takes_tensors(network_arch):
        raise UsageError(
            f"{network_arch} does not chat: --prompt is no request to it",
            f"--image FILE without a prompt, or --body FILE with V2's tensors, {example_body({})}",
        )


def explain_refusal(url: str, job_id: str, error: PlatformError) -> PlatformError:
    """Return the error, or one with an example V2 body if the model has no chat."""
    if not isinstance(error, client.TaskNotSupported):
        return error
    command = f"platformctl microservice infer {job_id} --body FILE"
    body = example_body(client.get_document(url, client.MODEL, METADATA_TIMEOUT_S))
    return UsageError("this model does not chat, it takes tensors", f"{command}, where FILE has {body}")


def example_body(metadata: Mapping[str, Any]) -> str:
    """Return a V2 body for the model; open dimensions are 1."""
    inputs = metadata.get("inputs") or [{"name": "NAME", "shape": [1], "datatype": "FP32"}]
    tensors = [
        {"name": each["name"], "shape": [max(1, int(size)) for size in each["shape"]], "datatype": each["datatype"],
         "data": ["…"]}
        for each in inputs
    ]  # fmt: skip
    return json.dumps({"inputs": tensors}, ensure_ascii=False)


def output_lines(document: Any) -> list[str]:
    """Return one line per output."""
    outputs = document.get("outputs") if isinstance(document, dict) else None
    if not isinstance(outputs, list):
        raise PlatformError(f"it responded 200 without outputs: {str(document)[:200]}")
    return [f"{each['name']} {each['datatype']} {each['shape']}: {json.dumps(each.get('data'))}" for each in outputs]


class RedactingGroup(click.Group):
    """Redacts secrets in errors: containers and other programs may repeat what they were given."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except PlatformError as error:
            error.args = tuple(redacted(str(each)) for each in error.args)
            error.hint = redacted(error.hint)
            raise


def on_terminal() -> bool:
    """Whether the user can be prompted."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def open_registry() -> Registry:
    return registry(os.environ)


def platform_of(entry: Entry) -> TargetService:
    return TargetService(entry.platform, os.environ)


def all_options() -> dict[str, tuple[Option, list[str]]]:
    """Return the options of all platforms by name, each with the platforms that take it."""
    options: dict[str, tuple[Option, list[str]]] = {}
    for name in PLATFORMS:
        try:
            platform_options = TargetService(name, os.environ).options
        except ModuleNotFoundError:
            continue
        for each in platform_options:
            options.setdefault(each.name, (each, []))[1].append(name)
    return options


class PlatformCommand(click.Command):
    """Command whose help has the options of platforms in sections of their own."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        titles = {name: f"Options of {', '.join(platforms)}" for name, (_, platforms) in all_options().items()}
        for each in self.get_params(context):
            if isinstance(each, click.Option) and (record := each.get_help_record(context)) is not None:
                sections.setdefault(titles.get(each.name or "", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def platform_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add one flag per platform option to a command of the class PlatformCommand."""
    for name, (option, _) in reversed(all_options().items()):
        variables = f" [env: {', '.join(option.variables)}]" if option.variables else ""
        needed = "Needed: " if option.required else ""
        command = click.option(
            f"--{name.replace('_', '-')}", name, metavar="VALUE", help=f"{needed}{option.help}{variables}"
        )(command)
    return command


def resolve_options(target: TargetService, flags: Mapping[str, str | None], image: str = "") -> dict[str, str]:
    """Return the platform's options. Missing required ones are prompted for on a terminal, else refused."""
    typed = {name: value for name, value in flags.items() if value is not None}
    values, missing = target_options.resolve_options(target.options, typed, os.environ, image, target.name)
    if not on_terminal():
        target_options.check_missing(missing, target.name)
    for each in missing:
        values[each.name] = prompt(f"{each.name} ({each.help})")
    return values


def prompt(question: str) -> str:
    return str(click.prompt(question, err=True)).strip()


class Ambiguous(UsageError):
    """Several microservices match."""

    def __init__(self, message: str, candidates: Mapping[str, Entry]) -> None:
        lines = [f"  {job_id}  {entry.network_arch}  {entry.host_url}  started {entry.started_at}"
                 for job_id, entry in candidates.items()]  # fmt: skip
        super().__init__("\n".join([message, *lines]), "name one of them by its job id")


def choose(state: RegistryState, job_id: str = "", network_arch: str = "") -> str:
    """Return the microservice by its job id, else by network architecture, else the only one that runs."""
    if job_id:
        return check_known(state, job_id)
    own = {name: entry for name, entry in state.entries.items() if not entry.closed}
    matches = {name: entry for name, entry in own.items() if network_arch in ("", entry.network_arch)}
    of_arch, command = (f" for {network_arch}", f"{START} {network_arch}") if network_arch else ("", START)
    if not matches:
        raise NotFound(f"no microservice{of_arch} is running", f"{command} starts one")
    if len(matches) > 1:
        raise Ambiguous(f"{len(matches)} microservices{of_arch} are running:", matches)
    return next(iter(matches))


def check_known(state: RegistryState, job_id: str) -> str:
    if job_id not in state.entries:
        known = ", ".join(state.entries) or "none"
        raise NotFound(f"no microservice has the job id {job_id}; there are {known}", "platformctl microservice list")
    return job_id


def choose_to_stop(state: RegistryState, job_id: str = "") -> str:
    """Return the job to stop, without an id the latest; the caller prompts for confirmation."""
    if job_id:
        return check_known(state, job_id)
    if state.latest not in state.entries:
        raise NotFound("no microservice is running, so there is none to stop", "platformctl microservice list")
    return state.latest


def select_job(state: RegistryState, job_id: str, network_arch: str) -> str:
    """Select a job by the routing rule; prompts on a terminal if several match."""
    try:
        return choose(state, job_id, network_arch)
    except Ambiguous as error:
        if not on_terminal():
            raise
        output.note(str(error))
        return check_known(state, prompt("job id"))


def parse_variables(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=VALUE arguments."""
    parsed = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--env {name or text}, must be NAME=VALUE")
        parsed[name] = value
    return parsed


def platform_status(job_id: str, entry: Entry) -> PlatformStatus:
    """Return the platform's status; `unknown` with the cause if it cannot be queried."""
    try:
        status = platform_of(entry).status(job_id, entry)
    except (PlatformError, ModuleNotFoundError) as error:
        cause = "; ".join(filter(None, (str(error), getattr(error, "hint", ""))))
        return PlatformStatus("unknown", reason=redacted(f"its platform does not respond: {cause}"))
    return PlatformStatus(
        status.state, status.pod_name, status.pod_status, redacted(status.reason), tuple(map(redacted, status.tail))
    )


def stop(job_id: str, entry: Entry) -> None:
    """Stop the job. If its platform refuses, the registry entry stays and the hint names --forget."""
    try:
        platform_of(entry).stop(job_id, entry)
    except PlatformError as error:
        forget = f"platformctl microservice stop {job_id} --forget only takes it off the registry"
        error.hint = "; ".join(filter(None, (error.hint, forget)))
        raise


def redacted(text: str) -> str:
    """Replace the values of secrets."""
    return secret_redaction.redact(text, os.environ)


def job_document(job_id: str, entry: Entry, *, tensors: bool | None = None) -> dict[str, Any]:
    """Return the job as -o json prints it."""
    fields = {name: value for name, value in to_builtins(entry).items() if value not in (None, False)}
    fields.pop(HIDDEN, None)
    return {"job_id": job_id, **fields, "url": inference_url(entry, tensors=tensors)}


def inference_url(entry: Entry, *, tensors: bool | None = None) -> str:
    """Return the URL of chat or V2 inference; by the network's protocol if `tensors` is None."""
    use_tensors = takes_tensors(entry.network_arch) if tensors is None else tensors
    return f"{entry.host_url.rstrip('/')}{TENSORS if use_tensors else PATH}"


@contextmanager
def hints_for(job_id: str) -> Iterator[None]:
    """Add the job id to hints that name `logs`: without it they are ambiguous."""
    try:
        yield
    except PlatformError as error:
        error.hint = error.hint.replace(LOGS, f"{LOGS} {job_id}")
        raise


def follow(
    first: PlatformStatus, read_status: ReadStatus, tail: int, note: Note, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Yield log lines until the job ends; an unreachable platform is polled again."""
    yield from first.tail[-tail:] if tail > 0 else ()
    before, status = first.tail, first
    while status.state not in ENDED:
        sleep(POLL_S)
        status = read_status()
        if status.state == "unknown" or not status.tail:
            continue
        new = new_lines(before, status.tail)
        if new is None:
            note(MISSED)
        yield from status.tail if new is None else new
        before = status.tail


def new_lines(before: Sequence[str], after: Sequence[str]) -> Sequence[str] | None:
    """Return the lines of `after` that follow those of `before`; None if the two windows do not overlap.

    A last line that has grown is returned whole.
    """
    if not before:
        return after
    for overlap in range(min(len(before), len(after)), 0, -1):
        if _overlaps(before[-overlap:], after[:overlap]):
            return after[overlap:] if before[-1] == after[overlap - 1] else after[overlap - 1 :]
    return None


def _overlaps(end: Sequence[str], start: Sequence[str]) -> bool:
    """Compare lines; windows cut by bytes may lack the start of the first line and the end of the last."""
    if len(end) == 1:
        return _continues(end[0], start[0])
    first = end[0] == start[0] or bool(start[0] and end[0].endswith(start[0]))
    return first and list(end[1:-1]) == list(start[1:-1]) and _continues(end[-1], start[-1])


def _continues(line: str, later: str) -> bool:
    return line == later or bool(line and later.startswith(line))
