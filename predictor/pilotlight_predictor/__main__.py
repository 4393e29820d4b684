"""`python -m pilotlight_predictor [FLAGS]` serves models; `fetch URI DIR` downloads one, `compile PATH` compiles."""

import gc
import os
import sys
from contextlib import suppress
from time import perf_counter


def main(argv: list[str]) -> int:
    if argv[:1] == ["fetch"]:
        from pilotlight_predictor.storage.command import main as fetch

        return fetch(argv[1:])
    if argv[:1] == ["compile"]:
        from pilotlight_predictor.backends.torch.aot.command import main as compile_model

        return compile_model(argv[1:])
    entered = perf_counter()
    gc.disable()  # until models are loaded: objects of the start stay, and visiting them takes a tenth of the imports
    from pilotlight_predictor.bootstrap.startup import main as serve

    return serve(argv, entered)


if __name__ == "__main__":
    from pilotlight.wire.sigterm import handle_sigterm

    handle_sigterm()
    code = main(sys.argv[1:])
    with suppress(OSError):  # a full disk for logs must not change the exit code
        sys.stdout.flush()
        sys.stderr.flush()
    # Threads of a hanging load or of a runtime's pool must not delay the exit.
    os._exit(code)
