import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.cache import cached, file_lock
from pilotlight_predictor.storage.fetcher import fetch
from pilotlight_predictor.storage.store_interface import FetchOptions, UriNotFound

FETCH = """
import sys
from pathlib import Path
from pilotlight_predictor.storage.fetcher import fetch
from pilotlight_predictor.storage.store_interface import FetchOptions
print(fetch(sys.argv[1], Path(sys.argv[2]), options=FetchOptions(part_bytes=64 * 1024, spare_bytes=0)))
"""


def test_two_processes_download_once(web: Any, tmp_path: Path, content: Any) -> None:
    web.files["/m.bin"] = content(1_000_000)
    web.hold_after = 300_000  # both are there before the first can be done
    web.on_request = lambda path: web.released.set() if web.probes() == 2 else None
    arguments = [sys.executable, "-c", FETCH, web.url("/m.bin"), str(tmp_path)]
    processes = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert outputs[0] == outputs[1]
    assert Path(outputs[0]).read_bytes() == content(1_000_000)
    assert web.body_bytes == 1_000_000


def test_an_unchanged_file_is_not_downloaded_again(web: Any, tmp_path: Path, options: FetchOptions) -> None:
    web.files["/m.bin"] = b"same"
    first = fetch(web.url("/m.bin"), tmp_path, options=options)
    assert fetch(web.url("/m.bin"), tmp_path, options=options) == first
    assert web.body_bytes == len(b"same")


def test_without_an_etag_nothing_proves_that_a_copy_is_current(web: Any, tmp_path: Path, options: FetchOptions) -> None:
    web.etags = False
    web.files["/m.bin"] = b"one"
    fetch(web.url("/m.bin"), tmp_path, options=options)
    web.files["/m.bin"] = b"two"
    assert fetch(web.url("/m.bin"), tmp_path, options=options).read_bytes() == b"two"
    assert len(list((tmp_path / "models").iterdir())) == 1  # the copy that nobody can find again is gone


def test_a_lost_copy_is_downloaded_again(web: Any, tmp_path: Path, options: FetchOptions) -> None:
    import shutil

    web.files["/m.bin"] = b"again"
    found = fetch(web.url("/m.bin"), tmp_path, options=options)
    shutil.rmtree(found.parent)
    assert fetch(web.url("/m.bin"), tmp_path, options=options).read_bytes() == b"again"


def test_no_secret_is_written_into_the_cache(web: Any, tmp_path: Path, options: FetchOptions) -> None:
    web.files["/m.bin"] = b"x"
    fetch(f"http://user:s3cr3t@127.0.0.1:{web.port}/m.bin?sig=s3cr3t", tmp_path, options=options)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == ".source.json" for path in written)
    assert not [path for path in written if b"s3cr3t" in path.read_bytes() or "s3cr3t" in str(path)]


def test_who_waits_for_another_process_may_give_up(tmp_path: Path) -> None:
    class GiveUp(Exception):
        pass

    def give_up() -> None:
        raise GiveUp

    with file_lock(tmp_path / "lock"), pytest.raises(GiveUp), file_lock(tmp_path / "lock", give_up):
        pass


def test_a_local_path_is_returned_as_it_is(tmp_path: Path, options: FetchOptions) -> None:
    model = tmp_path / "my model.onnx"
    model.write_bytes(b"local")
    assert fetch(str(model), tmp_path / "cache", options=options) == model
    assert fetch(model.as_uri(), tmp_path / "cache", options=options) == model
    assert not (tmp_path / "cache").exists()


def test_a_local_path_that_is_missing_is_not_found(tmp_path: Path, options: FetchOptions) -> None:
    with pytest.raises(UriNotFound, match="no such file or directory"):
        fetch(str(tmp_path / "nothing"), tmp_path, options=options)
    with pytest.raises(LoadFailed, match="file:// URI has no host"):
        fetch("file://models/iris", tmp_path, options=options)


def test_the_hash_of_a_local_file_is_checked(tmp_path: Path, options: FetchOptions) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"local")
    digest = hashlib.sha256(b"local").hexdigest()
    assert fetch(f"{model}#sha256={digest}", tmp_path, options=options) == model
    with pytest.raises(LoadFailed, match="must be 0000"):
        fetch(f"{model}#sha256={'0' * 64}", tmp_path, options=options)


@pytest.mark.parametrize(
    "source", ['{"content": "../../secret"}', '{"content": "/etc/passwd"}', "[]", "{}", "[" * 9999]
)
def test_a_shared_cache_leads_nowhere_else(tmp_path: Path, source: str) -> None:
    """Another pod that shares it has written there."""
    home = tmp_path / "models" / "key"
    home.mkdir(parents=True)
    (home / ".source.json").write_text(source)
    assert cached(tmp_path, "key") is None
