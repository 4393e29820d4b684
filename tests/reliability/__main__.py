"""`python -m tests.reliability`: run the fault table and write docs/reliability.md."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.reliability import clients, kills, models, predictors, state, updates, walk
from tests.reliability.page import save, write
from tests.reliability.table import TABLE, Outcome, Row, execute

GROUPS = (kills, updates, models, state, clients, predictors, walk)  # importing them fills the table
TABLE.sort(key=lambda row: [group.GROUP for group in GROUPS].index(row.group))
WORKERS = 2  # rows of the short form side by side: most of their time is waiting
LIMIT_S = 900.0  # of a row that is not bound by --minutes


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    chosen = options.rows.split(",") if options.rows else []
    if unknown := set(chosen) - {row.name for row in TABLE}:
        print(f"no such row: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    rows = [row for row in TABLE if (row.name in chosen if chosen else row.short or not options.short)]
    if options.list:
        print("\n".join(f"{row.name:36} {'short' if row.short else ''}" for row in rows))
        return 0
    walk.MINUTES, walk.SEED = options.minutes, options.seed

    def run(row: Row) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="pilotlight-faults-", ignore_cleanup_errors=True) as folder:
            return execute(row, Path(folder), options.short, LIMIT_S + 60 * options.minutes)

    outcomes = []
    with ThreadPoolExecutor(WORKERS if options.short else 1) as pool:
        for outcome in pool.map(run, rows):
            outcomes.append(outcome)
            print(line(outcome), flush=True)
            if not options.short:
                write(TABLE, save([outcome]))
    missed = [outcome.row for outcome in outcomes if outcome.missed]
    if options.short and missed:
        print(f"again, one after the other: {', '.join(row.name for row in missed)}", flush=True)
        outcomes = [run(row) for row in missed]  # side by side on a busy machine, time ran out for some
        print("\n".join(map(line, outcomes)), flush=True)
    return int(any(outcome.missed for outcome in outcomes))


def line(outcome: Outcome) -> str:
    counts = outcome.counts
    numbers = f"{counts.sent}/{counts.right}/{counts.wrong}/{counts.refused}/{counts.reset}/{counts.lost}"
    text = f"{outcome.row.name:36} {numbers:28} {outcome.back_s:5.1f} s  {outcome.verdict}  ({outcome.seconds:.0f} s)"
    return "\n".join([text, *(f"    {note}" for note in outcome.notes), *(f"    ! {each}" for each in outcome.missed)])


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    made.add_argument("--short", action="store_true", help="the rows of continuous integration, repeated less")
    made.add_argument("--rows", help="only these, separated by commas")
    made.add_argument("--minutes", type=float, default=walk.MINUTES, help="length of the random walk and of the soak")
    made.add_argument("--seed", type=int, help="of the random walk; printed by each")
    made.add_argument("--list", action="store_true", help="print the names of the rows")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
