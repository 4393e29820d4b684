"""Text of docs/reference/errors.md, made from the problem codes."""

from typing import Final

from pilotlight.spec.problems import code_texts

INTRODUCTION: Final = """# Error codes

This page is generated from `platform/pilotlight/spec/data/problem_codes.yaml`; a test keeps the two equal.

Each error in a manifest or plan has a stable code, a location (`file:line:column`), the path of the field, its value
and what is expected; all errors of a manifest are reported together. Errors exit with code 2; warnings do not, except
with `--strict`. `platformctl explain PL342` prints an entry. Codes PL4xx are [lint rules](lint.md); exit codes are on
the [CLI page](cli.md).
"""
SECTIONS: Final = {"PL1": "PL1xx: reading manifests", "PL2": "PL2xx: catalogue", "PL3": "PL3xx: planning"}


def page() -> str:
    return INTRODUCTION + "".join(section(prefix, title) for prefix, title in SECTIONS.items())


def section(prefix: str, title: str) -> str:
    rows = [
        f"| {code} | {text.what} | {text.fix} |\n" for code, text in code_texts().items() if code.startswith(prefix)
    ]
    return f"\n## {title}\n\n| code | meaning | what to do |\n|---|---|---|\n" + "".join(rows)
