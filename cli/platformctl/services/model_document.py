"""Document of a MODEL, with the options for one: what `deploy MODEL` and `canary start NAME MODEL` share."""

import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from pilotlight.contract import ENV_MODEL_PARAMETER, ENV_TRUST_PICKLE, trust_pickle_setting
from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.k8s.model_pins import local_path
from pilotlight.release.model_check import safe_formats
from pilotlight.targets import table
from pilotlight.targets.local.supervisor.logs import RAISE_LIMIT
from pilotlight.wire.model_formats import detect
from platformctl import output, targets
from platformctl.options import DocumentOptions
from platformctl.services import model_argument, model_replacement, scaffold

if TYPE_CHECKING:
    from pilotlight.spec.service import Service
    from pilotlight.targets.target import Target


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Values of the options for a MODEL."""

    name: str | None
    model_format: str | None
    min_replicas: int | None
    trust_pickle: bool
    save: str | None


model_options: Final = targets.option_group("model_options", ModelOptions, (
    click.option("--name", help="Name of a MODEL's service (default: from the model)."),
    click.option("--format", "model_format", help="Format of a MODEL: onnx, sklearn, … (default: detected)."),
    click.option("--min-replicas", type=click.IntRange(0), help="Min replicas of a MODEL (default: 0, if possible)."),
    click.option("--trust-pickle", is_flag=True, help="Allow a MODEL's pickles, pinned by SHA-256."),
    click.option("--save", type=click.Path(), metavar="FILE", help="Write the document of a MODEL to this file."),
))  # fmt: skip


def refuse_without_model(model_options: ModelOptions, command: str, service: str = "") -> None:
    """Raise UsageError for an option of a MODEL where there is none, but a manifest or a deployed service."""
    count = model_options.min_replicas
    scale = f"platformctl scale {service} --min {count}" if service else f"--set spec.predictor.minReplicas={count}"
    fixes = {"trust_pickle": trust_pickle_setting("FILE=SHA256"), "min_replicas": scale}
    for option, value in asdict(model_options).items():
        if value not in (None, False):
            flag = f"--{option.removeprefix('model_').replace('_', '-')}"
            fix = fixes.get(option, "write it into the document")
            raise UsageError(f"{flag} is for a MODEL: platformctl {command} {flag}", fix)


@contextmanager
def advice_of_command(document_options: DocumentOptions) -> Iterator[None]:
    """Write the advice of a failed start as options of the command for its MODEL, or as fields of its manifest.

    They trust a pickle that the predictor refuses, and raise the memory limit.
    """

    def own(advice: re.Match[str]) -> str:
        if document_options.text is None:
            value = json.dumps(advice["pins"], ensure_ascii=False)
            return f"write under model in its manifest:\n    env:\n    - name: {ENV_TRUST_PICKLE}\n      value: {value}"
        return f"the same command with {advice['setting'] if '://' in document_options.origin else '--trust-pickle'}"

    try:
        yield
    except PlatformError as error:
        advice = r"set --trust-pickle (?P<pins>.+?) \(for a manifest: (?P<setting>--set .+?\]')\)"
        error.args = (re.sub(advice, own, str(error)),)
        if reached := re.search(rf"limit (\d+) MiB[^;]*; {re.escape(RAISE_LIMIT)}", str(error)):
            path = "spec.predictor.model.resources.limits.memory"
            memory = f"{-(-int(reached[1]) // 512)}Gi"  # about twice as much
            words = _arguments() + given_options()
            same = f"{click.get_current_context().command_path}{words} --set {path}={memory}"
            same = f"the same call with sets={json.dumps({path: memory})}" if output.SINK.get() else same
            error.hint = f"{same}; {error.hint}" if document_options.text is not None else error.hint
        raise


def given_options(without: Collection[str] = ()) -> str:
    """Return the options of the running command as they were given, for a shell, with a space before them.

    `without`: names of options that are left out.
    """
    context, words = click.get_current_context(), list[Any]()
    for option in context.command.params:
        name = option.name or ""
        typed = name in context.params and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if typed and name not in without and isinstance(option, click.Option):  # --output is no parameter of it
            given = context.params[name]
            for value in given or () if option.multiple else [given]:
                flag = option.secondary_opts[-1] if value is False else option.opts[-1]
                words += [flag] if isinstance(value, bool) or value == option.flag_value else [flag, value]
    return "".join(f" {shlex.quote(str(word))}" for word in words)


def redeploy_command(service: "Service", path: str, namespace: str) -> str:
    """Return the command that deploys the changed model at a local path to its service, with the given options.

    `namespace`: the one of commands without --namespace.
    """
    by_file, model = "platformctl deploy -f FILE", (service.document["spec"].get("predictor") or {}).get("model")
    if not isinstance(model, Mapping) or local_path(str(model.get("storageUri"))) != path:
        return by_file
    env = {each["name"]: str(each.get("value")) for each in model.get("env") or ()}
    _, _, served = env.get(ENV_MODEL_PARAMETER, "").partition("class=")
    seen = os.path.relpath(path)
    word = f"{path if seen.startswith('..') else f'./{seen}'}{served and f':{served}'}"
    options = {
        "--namespace": service.namespace if service.namespace != namespace else "",
        "--format": "" if served or detect(Path(path)) else model["modelFormat"]["name"],
    }
    values = "".join(f" {option} {shlex.quote(value)}" for option, value in options.items() if value)
    trust = " --trust-pickle" if ENV_TRUST_PICKLE in env else ""
    given = given_options(without={"dry_run"})  # the command is to deploy it
    command = f"platformctl deploy {shlex.quote(word)} --name {service.name}{values}{trust}{given}"
    return f"{command}; or, if it has a manifest, {by_file}"


def _arguments() -> str:
    """Return the arguments of the running command for a shell, with a space before each."""
    context = click.get_current_context()
    values = (
        context.params.get(each.name or "") for each in context.command.params if isinstance(each, click.Argument)
    )
    words = chain.from_iterable(value if isinstance(value, tuple) else (value,) for value in values if value)
    return "".join(f" {shlex.quote(str(word))}" for word in words)


def with_document(
    word: str, document_options: DocumentOptions, model_options: ModelOptions, command: str = "deploy"
) -> DocumentOptions:
    """Return the options with the document of a model, for `on_service`."""
    target, file = document_options.target or targets.LOCAL, model_options.save or "-"
    table.check_name(target)
    if model_options.save == "-":
        message = "--save -: must be a file"
        raise UsageError(message, f"to print the document: platformctl init {shlex.quote(word)} --to -")
    if file != "-" and os.path.exists(file):
        raise UsageError(f"{file} exists; choose another with --save")
    model = model_argument.describe(
        word, model_format=model_options.model_format or "", trust_pickle=model_options.trust_pickle
    )
    output.note(f"{word}: {model.phrase}")
    if note := model_argument.unserved_code(word, model):
        output.note(note)
    model = model_argument.on_target(replace(model, name=model_options.name or model.name), target)
    if "://" not in word and (warning := model_argument.pickle_warning(model)):
        line = f"platformctl {command} {shlex.quote(word)}{given_options()} --trust-pickle"
        line = "trust_pickle=True" if output.SINK.get() else line
        raise UsageError(warning, f"if you trust it: {line}; else save it {safe_formats(model.phrase, model.pickle)}")
    if model_options.save:
        model = replace(model, uri=model_argument.seen_from(model.uri, file))
    elif "://" not in model.uri:
        model = replace(model, uri=os.path.abspath(model.uri))
    mode, reason = scaffold.recommend(scaffold.Answers())
    text = scaffold.document(model, scaffold.Answers(), mode, reason, file, target, names_mode=False)
    count = model_options.min_replicas
    least = () if count is None else (f"spec.predictor.minReplicas={count}",)
    sets = (*least, *document_options.sets)
    origin = f"manifest of {word}"
    return replace(document_options, names=(), files=("-",), text=text, origin=origin, sets=sets)


def on_service(
    document_options: DocumentOptions, model_options: ModelOptions, target: "Target | None"
) -> DocumentOptions:
    """Return the options with the model put into the manifest of its service, if one is deployed; write --save."""
    if document_options.text is None:
        return document_options
    text = document_options.text
    (generated,) = _objects(text)
    name = str(generated["metadata"]["name"])
    try:
        releases = target.releases((document_options.namespace, name)) if target is not None else ()
    except NotFound:  # a new service
        releases = ()
    if releases:
        (released,), others = _objects(releases[0].document), map(_objects, releases[0].catalogue)
        changed = model_replacement.with_model(released, generated)
        text = _yaml([changed, *chain.from_iterable(others)])
        if annotations := ", ".join(changed["metadata"].get("annotations", ())):
            output.note(f"{name} keeps its annotations: {annotations}")
    file = model_options.save
    if file is None:
        return replace(document_options, text=text)
    if document_options.sets:  # the comments at its top stay, those at its fields are lost
        head = "".join(takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True)))
        text = head + _yaml(_objects(text, document_options.sets))
    Path(file).write_text(text, encoding="utf-8")
    output.note(f"{file}: the manifest; the next time: platformctl deploy -f {shlex.quote(file)}")
    return replace(document_options, files=(file,), text=None, sets=())


def _objects(text: str, sets: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the documents of a text, the first one with the edits of --set."""
    from pilotlight.spec.load_documents import apply_sets
    from pilotlight.spec.problems import InvalidDocument, Problems
    from pilotlight.spec.yaml_nodes import parse

    nodes = parse(text, "<manifest>", problems := Problems())
    apply_sets(nodes[0], sets, problems)
    if problems.errors:
        raise InvalidDocument(problems.items)
    return [node.plain() for node in nodes]


def _yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    from pilotlight.k8s.manifest import Manifest, to_yaml

    return to_yaml([Manifest(each) for each in documents]).removeprefix("---\n")
