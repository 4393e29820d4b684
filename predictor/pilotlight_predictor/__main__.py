"""`python -m pilotlight_predictor [FLAGS]` serves models; `… fetch URI DIR` only brings one here."""

import os
import sys

from pilotlight_predictor.lifecycle import Lifecycle, seconds_since_exec


def main(argv: list[str]) -> int:
    if argv[:1] == ["fetch"]:
        from pilotlight_predictor.storage.command import main as fetch

        return fetch(argv[1:])
    lifecycle = Lifecycle(seconds_since_exec())
    from pilotlight_predictor.settings import command_line

    settings = command_line(argv, os.environ)
    from pilotlight_predictor.app import run

    return run(settings, lifecycle)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a load that hangs, or of a runtime's pool, must not hold the exit up.
    os._exit(code)
