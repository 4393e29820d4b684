"""Options of targets and platforms: declared as data, resolved from arguments, variables and defaults by the client."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from pilotlight.errors import UsageError


class Option(Struct, frozen=True):
    """Option of a target: its argument, or the first of `variables` that is set."""

    name: str
    help: str
    required: bool = False
    variables: tuple[str, ...] = ()
    default: str = ""
    needed_for: str = ""  # required for images with this prefix
    choices: tuple[str, ...] = ()


def resolve_options(
    declared: tuple[Option, ...], arguments: Mapping[str, str], environ: Mapping[str, str], image: str = "",
    platform: str = "this platform", flag: str = "",
) -> tuple[dict[str, str], list[Option]]:  # fmt: skip
    """Return the values, from arguments, variables or defaults, and the required options that are missing.

    Raise UsageError for unknown ones. `flag` is the argument of all, unless each has a flag of its own name.
    """
    known = sorted(each.name for each in declared)
    if unknown := [name for name in arguments if name not in known]:
        said = f"{_argument(unknown[0], flag)} is not an option of {platform}; options: {', '.join(known) or 'none'}"
        raise UsageError(said)
    values = {
        each.name: arguments.get(each.name)
        or next((environ[name] for name in each.variables if environ.get(name)), each.default)
        for each in declared
    }
    for each in declared:
        if each.choices and (value := values[each.name]) and value not in each.choices:
            raise UsageError(f"{each.name} = {value}, must be one of {', '.join(each.choices)}")
    missing = [
        each for each in declared
        if not values[each.name] and (each.required or (each.needed_for and image.startswith(each.needed_for)))
    ]  # fmt: skip
    return {name: value for name, value in values.items() if value}, missing


def check_missing(missing: list[Option], platform: str, flag: str = "") -> None:
    """Raise UsageError for the first missing option; `flag` as above."""
    if missing:
        first = missing[0]
        variables = f", or set {' or '.join(first.variables)}" if first.variables else ""
        flag = f"{_argument(first.name, flag)}{'=' if flag else ' '}"
        raise UsageError(f"{platform} needs {first.name}: {first.help}", f"{flag}VALUE{variables}")


def _argument(name: str, flag: str) -> str:
    return f"{flag} {name}" if flag else f"--{name.replace('_', '-')}"


def parse_options(pairs: Iterable[str]) -> dict[str, str]:
    options = dict(pair.partition("=")[::2] for pair in pairs)
    if wrong := [pair for pair in pairs if not pair.partition("=")[2]]:
        raise UsageError(f"--target-option {wrong[0]} must be NAME=VALUE")
    return options
