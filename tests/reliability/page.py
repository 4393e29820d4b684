"""docs/reliability.md from the outcomes of the rows, those of earlier runs included.

Outcomes are kept in `.bench/reliability.json`, so that rows can be run one by one and at different times.
"""

import fcntl
import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.reliability.table import BUSY, Outcome, Row

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"
STORE = ROOT / ".bench" / "reliability.json"
HEAD = Path(__file__).with_name("page.md")  # what the page says before the figures
COUNTS = ("sent", "right", "wrong", "refused", "reset", "lost")


def save(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Add outcomes to the stored ones; return all."""
    STORE.parent.mkdir(exist_ok=True)
    with open(STORE, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        stored: dict[str, Any] = json.loads(text) if text else {}
        for outcome in outcomes:
            record = asdict(outcome) | {"verdict": outcome.verdict, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
            del record["row"]
            stored[outcome.row.name] = record | {"commit": commit()}
        file.seek(0)
        file.truncate()
        json.dump(stored, file, indent=1)
    return stored


def write(table: Iterable[Row], stored: dict[str, Any]) -> None:
    PAGE.write_text(markdown(list(table), stored, machine()))


def markdown(table: list[Row], stored: dict[str, Any], machine: str) -> str:
    chosen = {row.name: stored[row.name] for row in table if row.name in stored}
    dates = sorted({record["date"] for record in chosen.values()})
    commits = sorted({record["commit"] for record in chosen.values()})
    sent = sum(record["counts"]["sent"] for record in chosen.values())
    wrong = sum(record["counts"]["wrong"] for record in chosen.values())
    parts = [f"{HEAD.read_text()}\nMeasured {' and '.join(dates)}, commit {', '.join(commits)}, on {machine}.\n"]
    parts.append(f"Total: {sent:,} requests, {wrong} wrong responses.\n")
    for group in dict.fromkeys(row.group for row in table):
        parts.append(f"### {group}\n")
        parts.append(
            "| row | fault | expected | sent | correct | wrong | errors | reset | none | outage (s) | verdict |"
        )
        parts.append("|---|---|---|---|---|---|---|---|---|---|---|")
        parts += [line(row, chosen.get(row.name)) for row in table if row.group == group]
        parts.append("")
    if missed := {name: record["missed"] for name, record in chosen.items() if record["missed"]}:
        parts.append("## Missed expectations\n")
        parts += [f"- `{name}`: {cell(text)}" for name, texts in missed.items() for text in texts[:3]]
        parts.append("")
    notes = {name: [text for text in record["notes"] if not text.startswith(BUSY)] for name, record in chosen.items()}
    if notes := {name: texts for name, texts in notes.items() if texts}:
        parts.append("## Notes\n")
        parts += [f"- `{name}`: {cell('; '.join(texts))}" for name, texts in notes.items()]
    return "\n".join(parts).rstrip() + "\n"


def line(row: Row, record: dict[str, Any] | None) -> str:
    if record is None or record["needs"]:
        verdict = record["verdict"] if record else "not run"
        numbers = ["–"] * 7
    else:
        busy = next((f", {text.removeprefix(BUSY)}" for text in record["notes"] if text.startswith(BUSY)), "")
        verdict = record["verdict"] + busy
        numbers = [f"{count:,}" for count in record["counts"].values()] + [f"{record['back_s']:.1f}"]
    return f"| {' | '.join([f'`{row.name}`', cell(row.fault), cell(row.expectation), *numbers, verdict])} |"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")[:500]


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores with {memory:.0f} GiB of memory, shared with other work"


def commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "--no-optional-locks", *words], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", "platform", "predictor", "cli")
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")
