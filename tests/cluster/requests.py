"""Requests to the iris model, one or many at a time, through an ingress."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from typing import Final
from urllib.parse import urlsplit

BODY: Final = b'{"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]}'


class Asker:
    """One kept connection to one host; `revisions` counts who answered, `failed` what did not."""

    def __init__(self, base: str, host: str, model: str) -> None:
        self._place, self._host, self._path = urlsplit(base), host, f"/v2/models/{model}/infer"
        self.answered = 0
        self.failed: list[str] = []
        self._connection: HTTPConnection | None = None

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def ask(self, headers: dict[str, str] | None = None) -> dict[str, str]:
        """The answer's headers; what is not an answer is noted."""
        assert self._place.hostname
        if self._connection is None:
            self._connection = HTTPConnection(self._place.hostname, self._place.port or 80, timeout=120)
        try:
            sent = {"Host": self._host, "Content-Type": "application/json", **(headers or {})}
            self._connection.request("POST", self._path, BODY, sent)
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, HTTPException) as error:
            self._connection.close()
            self._connection = None
            self.failed.append(repr(error))
            return {}
        if answer.status == 200:
            self.answered += 1
        else:
            self.failed.append(f"{answer.status} {body[:200]!r}")
        return {name.lower(): value for name, value in answer.getheaders()}


@contextmanager
def steady(base: str, host: str, model: str, clients: int = 4) -> Iterator[list[Asker]]:
    """Clients that ask one request after the other until the block ends."""
    askers = [Asker(base, host, model) for _ in range(clients)]
    stop = threading.Event()

    def run(asker: Asker) -> None:
        with asker:
            while not stop.is_set():
                asker.ask()
                stop.wait(0.01)

    threads = [threading.Thread(target=run, args=(asker,)) for asker in askers]
    for thread in threads:
        thread.start()
    try:
        yield askers
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def failures(askers: list[Asker]) -> list[str]:
    return [text for asker in askers for text in asker.failed]


def once(base: str, host: str, model: str) -> list[str]:
    """One request on a connection of its own; what went wrong."""
    with Asker(base, host, model) as asker:
        asker.ask()
        return asker.failed


def many(base: str, host: str, model: str, count: int) -> list[str]:
    """As many of them, eight at a time; whatever went wrong."""
    with ThreadPoolExecutor(8) as pool:
        return [text for failed in pool.map(lambda _: once(base, host, model), range(count)) for text in failed]
