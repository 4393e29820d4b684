"""Secrets travel by the name of an environment variable: never in an argument, a file, a log or an error. Pure.

Values are looked at for two things only: whether they are set, and whether they stand in a text where they must not.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from pilotlight.errors import UsageError

NAMES: Final = (
    "HF_TOKEN", "WANDB_API_KEY", "CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY", "TAO_API_KEY", "TAO_USER_KEY",
    "access_key", "secret_key",
)  # fmt: skip
# They would make a container call home, which these microservices never do.
FORBIDDEN: Final = ("TAO_LOGGING_SERVER_URL", "TAO_ADMIN_KEY")
WORKSPACES: Final = "WORKSPACE_"  # credentials that workspaces of orgs refer to: no model sees those of another
SHORTEST, SHORTEST_GUESSED = 6, 12  # a shorter value stands in any text by accident
_SOUNDS: Final = ("token", "secret", "password", "passwd", "api_key", "access_key", "private_key", "credential")
_PLACES: Final = ("_file", "_path", "_dir", "_url", "_host", "_helper")  # where one is, and not what it is


def chosen(offered: Iterable[str], asked: Iterable[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Those that an arch takes and that are set, and those that were asked for, which must be."""
    wanted = tuple(dict.fromkeys(asked))
    for name in wanted:
        if name in FORBIDDEN:
            raise UsageError(f"{name} is never passed to a microservice")
        if not environ.get(name):
            raise UsageError(f"the secret {name} is not set", f"export {name}=… first; its value is never asked for")
    return tuple(dict.fromkeys([*(name for name in offered if environ.get(name)), *wanted]))


def check_plain(variables: Mapping[str, str]) -> None:
    """Variables that are given with their values, and so are seen by anybody: no secret among them."""
    for name in variables:
        if name in FORBIDDEN:
            raise UsageError(f"{name} is never passed to a microservice")
        if is_secret(name):
            raise UsageError(
                f"{name} is a secret: its value must not be typed", f"export {name}=…, then --secret {name}"
            )


def is_secret(name: str) -> bool:
    sounds = any(sound in name.lower() for sound in _SOUNDS) and not name.lower().endswith(_PLACES)
    return name in NAMES or sounds or name.startswith(WORKSPACES)


def check_absent(what: str, text: str, environ: Mapping[str, str]) -> None:
    """Raises with the name of the secret whose value stands in the text."""
    for name, value in _values(environ):
        if value in text:
            raise UsageError(
                f"{what} holds the value of {name}", "secrets travel by the environment alone: take it out"
            )


def redacted(text: str, environ: Mapping[str, str], names: Iterable[str] = ()) -> str:
    """For what others wrote and we show: logs, error messages of other programs."""
    for name, value in _values(environ, names):
        text = text.replace(value, f"<{name}>")
    return text


def _values(environ: Mapping[str, str], names: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Longest first: one may be part of another."""
    least = dict.fromkeys((name for name in environ if is_secret(name)), SHORTEST_GUESSED)
    least |= dict.fromkeys([*NAMES, *names], SHORTEST)
    found = [(name, environ[name]) for name, length in least.items() if len(environ.get(name, "")) >= length]
    return sorted(found, key=lambda each: -len(each[1]))
