"""Formula."""


def mistake(text: str, known: set[str]) -> str:
    return ""
