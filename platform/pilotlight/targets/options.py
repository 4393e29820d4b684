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


def resolve_options(
    declared: tuple[Option, ...], arguments: Mapping[str, str], environ: Mapping[str, str], image: str = ""
) -> tuple[dict[str, str], list[Option]]:
    """Return the values, from arguments, variables or defaults, and the required options that are missing."""
    known = {each.name for each in declared}
    if unknown := [name for name in arguments if name not in known]:
        takes = ", ".join(sorted(known)) or "none"
        raise UsageError(f"--{unknown[0].replace('_', '-')} is no option of this platform, which takes {takes}")
    values = {
        each.name: arguments.get(each.name)
        or next((environ[name] for name in each.variables if environ.get(name)), each.default)
        for each in declared
    }
    missing = [
        each for each in declared
        if not values[each.name] and (each.required or (each.needed_for and image.startswith(each.needed_for)))
    ]  # fmt: skip
    return {name: value for name, value in values.items() if value}, missing


def check_missing(missing: list[Option], platform: str, flag: str = "") -> None:
    """Raise UsageError for the first missing option; `flag` is its argument, unless it is a flag of its own name."""
    if missing:
        first = missing[0]
        variables = f", or set {' or '.join(first.variables)}" if first.variables else ""
        flag = f"{flag} {first.name}=" if flag else f"--{first.name.replace('_', '-')} "
        raise UsageError(f"{platform} needs {first.name}: {first.help}", f"{flag}VALUE{variables}")


def parse_options(pairs: Iterable[str]) -> dict[str, str]:
    """Return the options of NAME=VALUE arguments."""
    options = dict(pair.partition("=")[::2] for pair in pairs)
    if wrong := [pair for pair in pairs if not pair.partition("=")[2]]:
        raise UsageError(f"--target-option {wrong[0]} must be NAME=VALUE")
    return options
