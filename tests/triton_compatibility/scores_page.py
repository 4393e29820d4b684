"""Section of docs/how-to/migrate-triton.md with the recorded cases: how many are the same, and which ones are not."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from tests.triton_compatibility.play import FOLDER, Outcome, read_cases

UNDECIDED: Final = frozenset({"unknown flag", "crash"})
MIN_PHRASES: Final = 0.89  # of the errors that have the key phrase

HEAD: Final = """# Recorded cases

<!-- made by `make docs` from tests/triton_compatibility -->

{cases} requests, connections and command lines in {rows} groups were recorded on Triton 2.51; what it crashes on or
does not know is decided by the source of a later version. With `--compat triton`, {same:.1%} of the outcomes are the
same: status, and the body where it is compared. At least {phrases:.0%} of the errors have Triton's key phrase. The
others:

| case | why it differs |
|---|---|
"""


@cache
def expected() -> Mapping[str, Outcome]:
    """What Triton did, or by a cited source does in a later version or where the recorded one crashes."""
    texts = [(FOLDER / f"{name}.jsonl").read_text() for name in ("triton", "decided")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return {line["case"]: line for line in lines if "case" in line and line["status"] not in UNDECIDED}


@cache
def differences() -> Mapping[str, str]:
    document: dict[str, str] = json.loads((FOLDER / "differences.json").read_text())
    return document


def page() -> str:
    """Return the section."""
    rows = {case["row"] for case in read_cases()}
    same = 1 - len(differences()) / len(expected())
    head = HEAD.format(cases=len(expected()), rows=len(rows), same=same, phrases=MIN_PHRASES)
    return head + "".join(_rows())


def _rows() -> Iterator[str]:
    for case, reason in differences().items():
        yield f"| {case} | {reason} |\n"
