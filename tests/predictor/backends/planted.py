"""A pickle that leaves a trace where it is read."""

from typing import Any


class Planted:
    """What a malicious file does when it is unpickled."""

    ran = False

    def __reduce__(self) -> Any:
        return (exec, ("import builtins; builtins.planted = True",))


def planted() -> bool:
    import builtins

    return vars(builtins).pop("planted", False)
