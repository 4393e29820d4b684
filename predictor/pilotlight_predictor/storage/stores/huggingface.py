"""`hf://org/repo[@revision][/path]`: models of the Hugging Face Hub, or of a mirror (HF_ENDPOINT).

huggingface-hub resolves revision, files and hashes; the bytes come through our ranged reads, so that resume, progress,
disk check and shared cache are the same as for every other store.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.http_client import WebClient
from pilotlight_predictor.storage.store_interface import Contents, Entry, FetchOptions, TransientError, UriNotFound
from pilotlight_predictor.storage.stores.web import read_range
from pilotlight_predictor.storage.uri import Location, is_loopback_url, redact_text, reference, safe_relative

DEFAULT_ENDPOINT = "https://huggingface.co"


class HubStore:
    def __init__(self, location: Location, options: FetchOptions) -> None:
        self._location = location
        self._reference = reference(location)
        self._timeout = options.timeout
        self._client = WebClient(options)
        self._endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or DEFAULT_ENDPOINT
        self._token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or None

    def contents(self) -> Contents:
        info = self._model_info()
        entries = [self._entry(file, info.sha) for file in info.siblings or []]
        path = self._reference.path
        for entry in entries:
            if path and entry.path == path:
                return Contents((replace(entry, path=path.rpartition("/")[2]),), single=True, commit=info.sha)
        prefix = f"{path}/" if path else ""
        below = tuple(replace(e, path=e.path[len(prefix) :]) for e in entries if e.path.startswith(prefix))
        if not below:
            raise UriNotFound(f"{self._location.redacted}: the repository has no {path or 'files'}; check the path")
        return Contents(below, commit=info.sha)

    def _model_info(self) -> Any:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError

        if is_loopback_url(self._endpoint):  # a mirror: bypass the proxies of the environment
            from huggingface_hub import set_client_factory
            from huggingface_hub.utils._http import get_session

            client = type(get_session())
            set_client_factory(lambda: client(trust_env=False, follow_redirects=True))
        api = HfApi(endpoint=self._endpoint, token=self._token)
        repo, revision, _ = self._reference
        try:
            return api.model_info(repo, revision=revision, files_metadata=True, timeout=self._timeout)
        except HFValidationError as error:
            raise LoadFailed(
                f"{self._location.redacted}: cannot be read; write hf://org/repo[@revision][/path]"
            ) from error
        except HfHubHTTPError as error:
            raise self._translate_error(error) from error
        except Exception as error:  # the HTTP library of huggingface_hub, and its errors, differ between releases
            raise TransientError(f"the hub cannot be reached ({type(error).__name__})") from error

    def _translate_error(self, error: Any) -> Exception:
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

        redacted = self._location.redacted
        status = error.response.status_code if error.response is not None else 0
        if isinstance(error, GatedRepoError):
            return LoadFailed(f"{redacted}: the repository is gated; accept its terms on the hub and set HF_TOKEN")
        if isinstance(error, RevisionNotFoundError):
            return UriNotFound(f"{redacted}: the repository has no revision {self._reference.revision!r}")
        if isinstance(error, RepositoryNotFoundError):
            return UriNotFound(f"{redacted}: no such repository, or a private one; check the name and set HF_TOKEN")
        if status in {401, 403}:
            return LoadFailed(f"{redacted}: access was refused; set HF_TOKEN to a token that may read it")
        if status == 429 or status >= 500 or not status:
            return TransientError(f"the hub returned {status}")
        return LoadFailed(f"{redacted}: the hub returned {status} ({redact_text(str(error))}); check the URI")

    def _entry(self, file: Any, commit: str) -> Entry:
        from huggingface_hub import hf_hub_url

        if not safe_relative(file.rfilename) or file.size is None:
            raise LoadFailed(
                f"{self._location.redacted}: the hub lists {file.rfilename!r}, which is not a valid file name"
            )
        url = hf_hub_url(self._reference.repo, file.rfilename, revision=commit, endpoint=self._endpoint)
        digest = f"sha256:{file.lfs.sha256}" if file.lfs else f"git-sha1:{file.blob_id}" if file.blob_id else ""
        return Entry(file.rfilename, file.size, etag=f"{commit}:{digest}", digest=digest, key=url)

    def read(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        """Read without comparing etags: files of a commit never change, and a CDN has etags of its own."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        yield from read_range(self._client, entry, start, end, headers, same_etag=False)


def open_store(location: Location, options: FetchOptions) -> HubStore:
    import huggingface_hub  # noqa: F401 - a missing extra must show here

    return HubStore(location, options)
