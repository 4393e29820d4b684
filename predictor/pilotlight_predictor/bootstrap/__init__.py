"""Commands of `python -m pilotlight_predictor`, shared by __main__.py and forked_child.py."""

import gc
from importlib import import_module
from time import perf_counter
from typing import Final

COMMANDS: Final = {
    "fetch": "pilotlight_predictor.storage.command",
    "pin": "pilotlight_predictor.storage.pin_command",
    "compile": "pilotlight_predictor.backends.torch.aot.command",
    "environment": "pilotlight_predictor.repository.environment",
}


def run_command(argv: list[str]) -> int:
    """Serve models, or run one of COMMANDS; return the exit code."""
    if argv and argv[0] in COMMANDS:
        code: int = import_module(COMMANDS[argv[0]]).main(argv[1:])
        return code
    entered = perf_counter()
    gc.disable()  # until models are loaded: objects of the start stay, and visiting them takes a tenth of the imports
    from pilotlight_predictor.bootstrap.startup import main as serve

    return serve(argv, entered)
