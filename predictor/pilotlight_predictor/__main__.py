"""`python -m pilotlight_predictor [FLAGS]` serves models; bootstrap.COMMANDS are the others."""

import os
import sys
from contextlib import suppress

from pilotlight_predictor.bootstrap import run_command

if __name__ == "__main__":
    from pilotlight.wire.early_sigterm import handle_sigterm

    handle_sigterm()
    code = run_command(sys.argv[1:])
    with suppress(OSError):  # a full disk for logs must not change the exit code
        sys.stdout.flush()
        sys.stderr.flush()
    # Threads of a hanging load or of a runtime's pool must not delay the exit.
    os._exit(code)
