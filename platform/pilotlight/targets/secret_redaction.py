"""Which environment variables are secrets by their name, and their redaction in texts of other programs."""

from collections.abc import Iterable, Mapping
from typing import Final

NAMES: Final = (
    "HF_TOKEN", "WANDB_API_KEY", "CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY", "TAO_API_KEY", "TAO_USER_KEY",
    "access_key", "secret_key",
)  # fmt: skip
WORKSPACE_PREFIX: Final = "WORKSPACE_"  # credentials of workspaces: never passed to models of other orgs
MIN_LENGTH, MIN_LENGTH_GUESSED = 6, 12  # a shorter value occurs in texts by chance
_SECRET_WORDS: Final = ("token", "secret", "password", "passwd", "api_key", "access_key", "private_key", "credential")
_LOCATION_SUFFIXES: Final = ("_file", "_path", "_dir", "_url", "_host", "_helper")  # where a secret is, not its value


def is_secret(name: str) -> bool:
    sounds = any(sound in name.lower() for sound in _SECRET_WORDS) and not name.lower().endswith(_LOCATION_SUFFIXES)
    return name in NAMES or sounds or name.startswith(WORKSPACE_PREFIX)


def redact(text: str, environ: Mapping[str, str], names: Iterable[str] = ()) -> str:
    """Replace values of secrets by their names, in logs and errors of other programs."""
    for name, value in secret_values(environ, names):
        text = text.replace(value, f"<{name}>")
    return text


def secret_values(environ: Mapping[str, str], names: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return names and values, longest first: one may contain another."""
    least = dict.fromkeys((name for name in environ if is_secret(name)), MIN_LENGTH_GUESSED)
    least |= dict.fromkeys([*NAMES, *names], MIN_LENGTH)
    values = [(name, environ[name]) for name, length in least.items() if len(environ.get(name, "")) >= length]
    return sorted(values, key=lambda each: -len(each[1]))
