"""Commands of `python -m pilotlight_predictor`, shared by __main__.py and forked_child.py."""

import gc
from time import perf_counter


def run_command(argv: list[str]) -> int:
    """Serve models, or run `fetch`, `pin` or `compile`; return the exit code."""
    if argv[:1] == ["fetch"]:
        from pilotlight_predictor.storage.command import main as fetch

        return fetch(argv[1:])
    if argv[:1] == ["pin"]:
        from pilotlight_predictor.storage.pin_command import main as pin

        return pin(argv[1:])
    if argv[:1] == ["compile"]:
        from pilotlight_predictor.backends.torch.aot.command import main as compile_model

        return compile_model(argv[1:])
    entered = perf_counter()
    gc.disable()  # until models are loaded: objects of the start stay, and visiting them takes a tenth of the imports
    from pilotlight_predictor.bootstrap.startup import main as serve

    return serve(argv, entered)
