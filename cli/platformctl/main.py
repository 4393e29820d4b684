"""Entry point: finds the verb, runs it, and turns errors into messages and exit codes.

A verb's module is imported when it is called or its own help is shown, so `platformctl --help` imports none.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from platformctl import output

if TYPE_CHECKING:
    from pilotlight.spec.problems import Problem


class Verb(NamedTuple):
    """A command of platformctl: its module below `platformctl.commands`, and its line of help."""

    module: str
    help: str


VERBS = {
    "demo": Verb("platform.demo", "Deploy an example, try a canary, let it fall to zero and wake it."),
    "init": Verb("document.init", "Write a commented service.yaml for a model."),
    "validate": Verb("document.validate", "Say everything that is wrong with documents, and where."),
    "render": Verb("document.render", "Print the manifests that documents amount to."),
    "diff": Verb("document.diff", "Compare what would be rendered with what runs, or with files."),
    "values": Verb("document.helm_values", "Print a service as values of the Helm chart."),
    "explain": Verb("document.explain_plan", "Say what was decided about a service, and why."),
    "up": Verb("platform.up", "Start the embedded platform."),
    "down": Verb("platform.down", "Stop the embedded platform and everything it runs."),
    "backup": Verb("platform.backup", "Write the platform's state to a file."),
    "restore": Verb("platform.restore", "Put a backup in the place of the platform's state."),
    "deploy": Verb("service.deploy", "Make services run as documents say."),
    "status": Verb("service.status", "Show revisions, replicas, latency and scaling."),
    "list": Verb("service.list", "List services, a line each."),
    "scale": Verb("service.scale", "Set by hand how many replicas may run."),
    "traffic": Verb("service.traffic", "Set by hand which revision gets which share of the requests."),
    "canary": Verb("service.canary", "Try a new revision on a share of the requests."),
    "rollback": Verb("service.rollback", "Deploy an earlier release again."),
    "infer": Verb("service.infer", "Ask a service once."),
    "profile": Verb("service.profile", "Show where the time of a running service goes."),
    "logs": Verb("service.logs", "Show what replicas wrote."),
    "events": Verb("service.events", "Show what happened to services."),
    "console": Verb("platform.console", "Open the web console."),
    "delete": Verb("service.delete", "Delete services."),
    "doctor": Verb("platform.doctor", "Check whether this machine can run services."),
    "dashboard": Verb("platform.dashboard", "Print or write dashboards for Grafana, and rules for Prometheus."),
    "lint": Verb("document.lint", "Say what is dangerous in ScaledObjects, Knative Services and workloads."),
    "microservice": Verb("microservice.lifecycle", "Start one model behind one address, ask it, watch it and stop it."),
    "controller": Verb("platform.controller", "Reconcile the InferenceServices of a cluster."),
    "api": Verb("platform.api", "Serve the control API, or make keys for it."),
    "serve": Verb("model.serve", "Serve models; all flags are the predictor's."),
    "fetch": Verb("model.fetch", "Download a model: URI DIR."),
    "compile": Verb("model.compile", "Compile a torch model, so that it starts without torch."),
    "version": Verb("platform.version", "Versions of this program and of what it runs on."),
}

# Verbs of other tools, and what to type here.
ELSEWHERE = {
    "apply": "deploy", "create": "deploy", "run": "deploy", "update": "deploy", "push": "deploy", "get": "list",
    "ls": "list", "ps": "list", "describe": "status", "show": "status", "top": "status NAME -w",
    "watch": "status NAME -w", "history": "events NAME, or rollback NAME --to", "undo": "rollback",
    "stop": "scale NAME --to 0, or delete", "rm": "delete", "remove": "delete", "undeploy": "delete",
    "destroy": "delete", "start": "up", "shutdown": "down", "predict": "infer", "invoke": "infer", "curl": "infer",
    "test": "infer", "template": "render", "check": "validate", "pull": "fetch", "download": "fetch",
    "help": "--help, or VERB --help",
}  # fmt: skip


class Verbs(click.Group):
    """Group of all verbs that imports a verb's module when it is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command: click.Command = getattr(import_module(f"platformctl.commands.{VERBS[name].module}"), name)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = [ELSEWHERE[args[0]]] if args[0] in ELSEWHERE else get_close_matches(args[0], VERBS, n=1)
            context.fail(f"no such verb: {args[0]}" + (f"; did you mean {near[0]}?" if near else ""))
        return super().resolve_command(context, args)


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@output.formats(*output.FORMATS)
@click.option("--version", is_flag=True, help=VERBS["version"].help)
@click.pass_context
def platformctl(context: click.Context, version: bool) -> None:
    """Serve models that scale to zero."""
    if version:
        command = platformctl.get_command(context, "version")
        assert command is not None
        context.invoke(command)
        context.exit()
    if context.invoked_subcommand is None:
        context.fail("a verb is missing")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Console script. PLATFORMCTL_DEBUG=1 shows the traceback of an internal error."""
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        result = platformctl.main(args=list(argv), prog_name="platformctl", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        output.note(error.format_message())
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        output.error(error.format_message(), f"{context.command_path if context else 'platformctl'} --help says more")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception as error:
        return _report_error(error)
    return result if isinstance(result, int) else 0


def _report_error(error: Exception) -> int:
    """Print an error and return its exit code. Error classes are imported here: `--help` needs none."""
    from pilotlight.errors import InternalError, PlatformError
    from pilotlight.spec.problems import InvalidDocument

    if isinstance(error, InvalidDocument):
        output.problems(error.problems)
        output.error(summary(error.problems))
    elif isinstance(error, PlatformError) and not isinstance(error, InternalError):
        output.error(str(error), error.hint)
    else:
        _report_internal_error(error)
        return InternalError.exit_code
    return error.exit_code


def summary(problems: "Sequence[Problem]") -> str:
    """`2 errors and 1 warning; nothing was done`: the last line of a list of problems."""
    counts = {word: sum(problem.severity == word for problem in problems) for word in ("error", "warning")}
    parts = [f"{count} {word}{'s' if count > 1 else ''}" for word, count in counts.items() if count]
    return f"{' and '.join(parts)}; nothing was done"


def _report_internal_error(error: Exception) -> None:
    if os.environ.get("PLATFORMCTL_DEBUG"):
        import traceback

        output.note("".join(traceback.format_exception(error)))
    from pilotlight.errors import InternalError

    what = str(error) if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
    output.error(f"internal: {what}", "PLATFORMCTL_DEBUG=1 shows where; please report it")


if __name__ == "__main__":
    main()
