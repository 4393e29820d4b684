"""Entry point: finds the verb, runs it, and turns errors into messages and exit codes.

A verb's module is imported when it is called or its own help is shown, so `platformctl --help` imports none.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import click

from platformctl import output

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from pilotlight.spec.problems import Problem


class Verb(NamedTuple):
    """A command of platformctl: its module below `platformctl.commands`, its line of help, its group in `--help`."""

    module: str
    help: str
    group: str


START, SERVICES, RELEASES = "Start here", "Services", "Releases and traffic"
DOCUMENTS, PLATFORM, OTHER = "InferenceServices before a deploy", "Platform", "Other"
BEFORE_VERB: Final = "platformctl.before-verb"  # key in click's meta of options that stand before the verb

VERBS = {
    "demo": Verb("platform.demo", "Run a tour: deploy an example, try a canary, scale to zero, wake it.", START),
    "init": Verb("document.init", "Write a commented service.yaml for a model.", START),
    "migrate": Verb("document.migrate", "Write the InferenceService that replaces a Triton server.", DOCUMENTS),
    "validate": Verb("document.validate", "Report all errors of InferenceServices, with file and line.", DOCUMENTS),
    "render": Verb("document.render", "Print the manifests of InferenceServices.", DOCUMENTS),
    "diff": Verb("document.diff", "Show what a deploy would change.", DOCUMENTS),
    "values": Verb("document.helm_values", "Print a service as values of the Helm chart.", DOCUMENTS),
    "explain": Verb("document.explain_plan", "Explain the decisions about a service, or an error code.", DOCUMENTS),
    "simulate": Verb("document.simulate", "Replay a trace against documents: latency, replicas, cost.", DOCUMENTS),
    "tune": Verb("document.tune", "Propose settings that meet an objective for a trace.", DOCUMENTS),
    "up": Verb("platform.up", "Start the embedded platform.", PLATFORM),
    "down": Verb("platform.down", "Stop the embedded platform and everything that it runs.", PLATFORM),
    "backup": Verb("platform.backup", "Write the platform's state to a file.", PLATFORM),
    "restore": Verb("platform.restore", "Replace the platform's state by a backup.", PLATFORM),
    "deploy": Verb("service.deploy", "Deploy a model or InferenceServices, and wait until they serve.", START),
    "status": Verb("service.status", "Show revisions, replicas, latency and scaling.", SERVICES),
    "list": Verb("service.list", "List services.", SERVICES),
    "top": Verb("platform.top", "Show the load of all services live.", SERVICES),
    "usage": Verb("platform.usage", "Show tokens and their cost by team, model and day.", SERVICES),
    "wait": Verb(
        "service.wait", "Wait until a service is ready, at zero or deleted, or its canary has ended.", SERVICES
    ),
    "scale": Verb("service.scale", "Set min and max replicas.", RELEASES),
    "traffic": Verb("service.traffic", "Set the traffic split between revisions.", RELEASES),
    "canary": Verb("service.canary", "Try a new revision on part of the traffic, with automatic rollback.", RELEASES),
    "history": Verb("service.history", "List the releases of a service and what each changed.", RELEASES),
    "rollback": Verb("service.rollback", "Deploy an earlier release again.", RELEASES),
    "infer": Verb("service.infer", "Send one inference request to a service.", START),
    "profile": Verb("service.profile", "Show where a running service spends its time.", SERVICES),
    "logs": Verb("service.logs", "Show the logs of replicas.", SERVICES),
    "events": Verb("service.events", "Show deploys, scaling decisions and failures.", SERVICES),
    "console": Verb("platform.console", "Open the web console.", PLATFORM),
    "delete": Verb("service.delete", "Delete services.", SERVICES),
    "doctor": Verb("platform.doctor", "Check this machine or a cluster.", PLATFORM),
    "dashboard": Verb("platform.dashboard", "Print or write Grafana dashboards and Prometheus rules.", PLATFORM),
    "lint": Verb("document.lint", "Find dangerous settings in ScaledObjects, Knative Services, workloads.", DOCUMENTS),
    "microservice": Verb("microservice.lifecycle", "Start, call and stop a single model on any platform.", OTHER),
    "controller": Verb("platform.controller", "Reconcile the InferenceServices of a cluster.", PLATFORM),
    "audit": Verb("platform.audit", "Check the audit log of requests and deploys.", PLATFORM),
    "api": Verb("platform.api", "Serve the control API, or manage its keys.", PLATFORM),
    "serve": Verb("model.predictor", "Serve models in the foreground, without a platform.", START),
    "fetch": Verb("model.predictor", "Download a model: URI DIR.", OTHER),
    "compile": Verb("model.predictor", "Compile a torch model, so that it starts without torch.", OTHER),
    "completion": Verb("platform.completion", "Print the completion script of bash, zsh or fish.", OTHER),
    "version": Verb("platform.version", "Print the versions of this program and of Python.", OTHER),
}

# Verbs of kubectl, docker and others that mean the same here.
ALIASES = {"apply": "deploy", "describe": "status", "ls": "list", "ps": "list", "revisions": "history"}
# Verbs that mean something else here, and what to type instead.
ELSEWHERE = {
    "get": "list shows all services, status NAME one of them", "create": "deploy MODEL or deploy -f FILE",
    "update": "deploy -f FILE again, or deploy NAME --set PATH=VALUE", "edit": "deploy NAME --set PATH=VALUE",
    "run": "deploy MODEL runs it as a service, serve --model-path MODEL in the foreground", "push": "deploy MODEL",
    "start": "up starts the platform, deploy a service", "shutdown": "down",
    "stop": "down stops the platform, delete NAME a service; without requests a service scales to zero",
    "restart": "down and up restart the platform, deploy NAME a service",
    "port-forward": "status NAME -o url shows the address; infer NAME reaches a service of a cluster without one",
    "exec": "logs NAME shows the output of replicas; there is no shell in them", "stats": "top",
    "rm": "delete NAME", "remove": "delete NAME", "undeploy": "delete NAME", "destroy": "delete NAME",
    "show": "status NAME", "watch": "status NAME -w", "rollout": "history NAME, rollback NAME or canary status NAME",
    "undo": "rollback NAME", "predict": "infer NAME", "invoke": "infer NAME", "curl": "infer NAME",
    "template": "render -f FILE", "check": "validate -f FILE", "pull": "fetch URI DIR", "download": "fetch URI DIR",
}  # fmt: skip


class Verbs(click.Group):
    """Group of all verbs that imports a verb's module when it is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        name = ALIASES.get(name, name)
        if name not in VERBS:
            return None
        command: click.Command = getattr(import_module(f"platformctl.commands.{VERBS[name].module}"), name)
        return command

    def shell_complete(self, context: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete verbs without their modules: importing all of them takes a second."""
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(name, help=verb.help) for name, verb in VERBS.items() if name.startswith(incomplete)]
        return [*verbs, *click.Command.shell_complete(self, context, incomplete)]

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for group in (START, SERVICES, RELEASES, DOCUMENTS, PLATFORM, OTHER):
            with formatter.section(group):
                rows = [(name.ljust(width), verb.help) for name, verb in VERBS.items() if verb.group == group]
                formatter.write_dl(rows)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in {*VERBS, *ALIASES} and not args[0].startswith("-"):
            from pilotlight.wire.messages import suggestion

            hint = f"; instead: {ELSEWHERE[args[0]]}" if args[0] in ELSEWHERE else suggestion(args[0], VERBS)
            context.fail(f"no such verb: {args[0]}{hint}")
        name, command, rest = super().resolve_command(context, args)
        if context.resilient_parsing:
            return name, command, rest
        # Behind the words, which may name a verb of a group, and before the options, of which the last one applies.
        place = next((index for index, word in enumerate(rest) if word.startswith("-")), len(rest))
        return name, command, [*rest[:place], *context.meta.get(BEFORE_VERB, ()), *rest[place:]]

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except Exception as error:
            if "platformctl.targets" in sys.modules:  # of a verb about services
                from platformctl.targets import suggest_service

                suggest_service(error, context.meta)
            raise


def _move_behind_verb(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(BEFORE_VERB, []).extend((parameter.opts[-1], value))


def options_before_verb(verbs: Verbs) -> Verbs:
    """Accept options that many verbs have before the verb, as kubectl does; help lists them with each verb."""
    for names in (("-n", "--namespace"), ("--target",), ("--context",)):
        verbs.params.append(click.Option(names, hidden=True, expose_value=False, callback=_move_behind_verb))
    return verbs


@options_before_verb
@click.group(
    cls=Verbs,
    invoke_without_command=True,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@output.formats(*output.FORMATS)
@click.option("--version", is_flag=True, help=VERBS["version"].help)
@click.pass_context
def platformctl(context: click.Context, version: bool) -> None:
    """Serve models that scale to zero, on this machine, a cluster, Docker or Slurm.

    Example: platformctl deploy ./model.onnx && platformctl infer model --data '[1, 2, 3]'

    `platformctl VERB --help` describes a verb; docs/reference/cli.md has all of them.
    """
    if version:
        command = platformctl.get_command(context, "version")
        assert command is not None
        context.invoke(command)
        context.exit()
    if context.invoked_subcommand is None:
        context.fail("no verb is given")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Console script. PLATFORMCTL_DEBUG=1 shows the traceback of an internal error."""
    try:
        sys.exit(run(sys.argv[1:] if argv is None else argv))
    finally:
        if "_PLATFORMCTL_COMPLETE" in os.environ:  # a shell does not wait for requests to a silent target
            sys.stdout.flush()
            os._exit(0)


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code. `help VERB` is `VERB --help`."""
    argv = [*argv[1:], "--help"] if argv[:1] == ["help"] else list(argv)
    try:
        result = platformctl.main(args=argv, prog_name="platformctl", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        output.note(error.format_message())
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        output.error(error.format_message(), f"{context.command_path if context else 'platformctl'} --help")
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
    output.error(f"internal: {what}", "PLATFORMCTL_DEBUG=1 shows the traceback; please report it")


if __name__ == "__main__":
    main()
