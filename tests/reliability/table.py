"""The fault table: a row is a function with the injected fault and the expectation in its docstring."""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.reliability.load import Counts
from tests.reliability.scenario import Scenario, patience

Run = Callable[[Scenario], Awaitable[None]]
BUSY = "the machine was busy: bounds in seconds "  # begins the note that time bounds were scaled


class Unavailable(Exception):
    """This machine lacks what a row needs: root, a tool, a library."""


@dataclass(frozen=True)
class Row:
    """`short` rows belong to the short form too."""

    name: str
    group: str
    fault: str
    expectation: str
    run: Run
    short: bool = False


@dataclass
class Outcome:
    row: Row
    counts: Counts = field(default_factory=Counts)
    back_s: float = 0.0
    seconds: float = 0.0
    missed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    needs: str = ""  # why it was not run

    @property
    def verdict(self) -> str:
        if self.needs:
            return f"not run: needs {self.needs}"
        return "missed" if self.missed else "as expected"


TABLE: list[Row] = []
_PORTS = threading.Lock()  # rows that run side by side take their ports one after the other


def row(group: str, *, short: bool = False) -> Callable[[Run], Run]:
    """Register a function as a row. Its docstring has two paragraphs: the fault, the expectation."""

    def register(run: Run) -> Run:
        fault, expectation = (" ".join(part.split()) for part in (inspect.getdoc(run) or "").split("\n\n"))
        TABLE.append(Row(run.__name__.replace("_", "-"), group, fault, expectation, run, short))
        return run

    return register


def execute(row: Row, folder: Path, short: bool, limit_s: float) -> Outcome:
    """Run one row; whatever it raises is a missed expectation."""
    outcome, began = Outcome(row), time.monotonic()
    with _PORTS:
        scenario = Scenario(folder, short)
    try:
        asyncio.run(asyncio.wait_for(row.run(scenario), limit_s))
    except Unavailable as error:
        outcome.needs = str(error)
    except Exception as error:
        scenario.missed.append(f"{type(error).__name__}: {str(error)[-400:]}")
    finally:
        scenario.finish()
    if (factor := patience()) > 1.2:
        scenario.notes.append(f"{BUSY}× {factor:.1f}")
    outcome.counts, outcome.back_s = scenario.counts, scenario.back_s
    outcome.missed, outcome.notes = scenario.missed, scenario.notes
    outcome.seconds = time.monotonic() - began
    return outcome
