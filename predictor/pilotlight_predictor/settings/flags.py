"""Settings from the command line, by the table; importing argparse would add 6 ms to a cold start.

`--flag value` equals `--flag=value`, and dashes equal underscores (KServe writes `--model_name`); a boolean flag needs
no value, and `--no-…` turns it off.
"""

from collections import deque
from collections.abc import Sequence

from pilotlight_predictor.settings import compat
from pilotlight_predictor.settings.kinds import BOOL, FALSE, TRUE
from pilotlight_predictor.settings.reading import ParsedSource, did_you_mean
from pilotlight_predictor.settings.table import CONFIG, ROWS, SettingRow

FLAGS: dict[str, SettingRow] = {flag: row for row in (*ROWS, CONFIG) for flag in row.flags}
INFO_FLAGS = ("--help", "-h", "--version")


def read_flags(argv: Sequence[str]) -> ParsedSource:
    source, rest = ParsedSource(), deque(argv)
    translated: dict[str, list[str]] = {}
    while rest:
        word, equals, attached = rest.popleft().partition("=")
        flag = word.replace("_", "-")
        text = _text(flag, attached if equals else None, rest)
        if text is None:
            _report(word, flag, source)
        elif flag in FLAGS:
            source.add(FLAGS[flag], text, flag)
        elif flag in compat.TRANSLATED:
            translated.setdefault(flag, []).append(text)
        elif flag in compat.IGNORED or flag in compat.REFUSED:
            compat.ignore(flag, text, source)
        else:
            source.add(FLAGS[_negated(flag)], "false", flag)
    compat.translate(translated, source)
    return source


def _text(flag: str, attached: str | None, rest: deque[str]) -> str | None:
    """Return the flag's value, taken from `rest` if not attached; None without a value or for an unknown flag."""
    if _negated(flag):
        return "false" if attached is None else None
    row = FLAGS.get(flag)
    if attached is None and ((row and row.kind is BOOL) or flag in compat.BOOLEANS):
        attached = rest.popleft() if rest and rest[0].lower() in TRUE | FALSE else "true"
    elif attached is None and flag.startswith("--") and rest and not rest[0].startswith("--"):
        attached = rest.popleft()  # for an unknown flag too: its value is not reported as another problem
    if row or flag in compat.TRANSLATED:
        return attached
    return attached or "" if flag in compat.IGNORED or flag in compat.REFUSED else None


def _negated(flag: str) -> str:
    """Return `--access-log` for `--no-access-log`, else an empty string."""
    on = "--" + flag.removeprefix("--no-")
    return on if flag.startswith("--no-") and on in FLAGS and FLAGS[on].kind is BOOL else ""


def _report(word: str, flag: str, source: ParsedSource) -> None:
    if flag in FLAGS:
        source.skip(f"{flag}: needs a value, {FLAGS[flag].kind.must}")
    elif flag in compat.TRANSLATED:
        source.skip(f"{flag}: needs a value")
    elif _negated(flag):
        source.skip(f"{flag}: takes no value; write {_negated(flag)}=…")
    elif flag.startswith("-"):
        near = did_you_mean(flag, [*FLAGS, *compat.TRANSLATED, *compat.IGNORED])
        source.skip(f"{word}: is not a flag{near or '; --help lists them'}")
    else:
        source.skip(f"{word}: is not a flag; a value follows its flag, as in --model-path {word}")
