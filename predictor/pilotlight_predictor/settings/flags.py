"""The command line. A table does the work of argparse, whose import alone would cost a cold start 6 ms.

`--flag value` and `--flag=value` are the same, dashes and underscores too (KServe writes `--model_name`); a switch may
stand alone, and `--no-…` turns it off.
"""

from collections import deque
from collections.abc import Sequence

from pilotlight_predictor.settings import compat
from pilotlight_predictor.settings.kinds import BOOL, FALSE, TRUE
from pilotlight_predictor.settings.reading import Reading, did_you_mean
from pilotlight_predictor.settings.table import CONFIG, ROWS, Row

FLAGS: dict[str, Row] = {flag: row for row in (*ROWS, CONFIG) for flag in row.flags}
ANSWERED = ("--help", "-h", "--version")


def read_flags(argv: Sequence[str]) -> Reading:
    reading, rest = Reading(), deque(argv)
    translated: dict[str, list[str]] = {}
    while rest:
        word, equals, attached = rest.popleft().partition("=")
        flag = word.replace("_", "-")
        text = _text(flag, attached if equals else None, rest)
        if text is None:
            _complain(word, flag, reading)
        elif flag in FLAGS:
            reading.take(FLAGS[flag], text, flag)
        elif flag in compat.TRANSLATED:
            translated.setdefault(flag, []).append(text)
        elif flag in compat.IGNORED or flag in compat.REFUSED:
            compat.ignore(flag, text, reading)
        else:
            reading.take(FLAGS[_switched_off(flag)], "false", flag)
    compat.translate(translated, reading)
    return reading


def _text(flag: str, attached: str | None, rest: deque[str]) -> str | None:
    """The flag's value, taken off `rest` where it is not attached; None when there is none or the flag is unknown."""
    if _switched_off(flag):
        return "false" if attached is None else None
    row = FLAGS.get(flag)
    if attached is None and ((row and row.kind is BOOL) or flag in compat.BOOLEANS):
        attached = rest.popleft() if rest and rest[0].lower() in TRUE | FALSE else "true"
    elif attached is None and flag.startswith("--") and rest and not rest[0].startswith("--"):
        attached = rest.popleft()  # for an unknown flag too: to complain of its value as well would only confuse
    if row or flag in compat.TRANSLATED:
        return attached
    return attached or "" if flag in compat.IGNORED or flag in compat.REFUSED else None


def _switched_off(flag: str) -> str:
    """`--access-log` for `--no-access-log`, else nothing."""
    on = "--" + flag.removeprefix("--no-")
    return on if flag.startswith("--no-") and on in FLAGS and FLAGS[on].kind is BOOL else ""


def _complain(word: str, flag: str, reading: Reading) -> None:
    if flag in FLAGS:
        reading.pass_over(f"{flag}: needs a value, {FLAGS[flag].kind.must}")
    elif flag in compat.TRANSLATED:
        reading.pass_over(f"{flag}: needs a value")
    elif _switched_off(flag):
        reading.pass_over(f"{flag}: takes no value; write {_switched_off(flag)}=…")
    elif flag.startswith("-"):
        near = did_you_mean(flag, [*FLAGS, *compat.TRANSLATED, *compat.IGNORED])
        reading.pass_over(f"{word}: is not a flag{near or '; --help lists them'}")
    else:
        reading.pass_over(f"{word}: is not a flag; a value follows its flag, as in --model-path {word}")
