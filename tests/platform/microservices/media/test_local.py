"""Media of this machine: below an opened folder, through no link, plain files alone."""

import os
from pathlib import Path

import pytest
from tests.platform.microservices.media.conftest import png

from pilotlight.microservices.media import Limits, MediaRefused, fetch

NOT_THERE = "media[0] is not an allowed file for media; the operator allows folders with PILOTLIGHT_MEDIA_ROOTS"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "open" / "sub").mkdir(parents=True)
    (tmp_path / "open" / "sub" / "a.png").write_bytes(png())
    (tmp_path / "secret.png").write_bytes(png())
    return tmp_path / "open"


def test_a_path_below_an_opened_folder_is_taken_whole_or_relative(root: Path) -> None:
    limits = Limits(roots=(str(root),))
    for reference in (str(root / "sub/a.png"), "sub/a.png", f"file://{root}/sub/a.png", f"{root}/sub/../sub/a.png"):
        assert fetch([reference], None, limits)[0].data == png()


def test_nothing_is_open_by_itself(root: Path) -> None:
    with pytest.raises(MediaRefused) as caught:
        fetch([str(root / "sub/a.png")], None, Limits())
    assert str(caught.value) == NOT_THERE


@pytest.mark.parametrize(
    "reference", ["../secret.png", "sub/../../secret.png", "/etc/passwd", "sub", "", ".", "none.png", "link/a.png",
                  "link.png", "out.png", "pipe.png"],
)  # fmt: skip
def test_what_leads_out_or_is_no_plain_file_is_refused_alike(root: Path, reference: str) -> None:
    (root / "link").symlink_to(root / "sub")
    (root / "link.png").symlink_to(root / "sub" / "a.png")
    (root / "out.png").symlink_to(root.parent / "secret.png")
    os.mkfifo(root / "pipe.png")
    with pytest.raises(MediaRefused) as caught:
        fetch([reference], None, Limits(roots=(str(root),)))
    assert str(caught.value) == NOT_THERE or not reference


def test_a_folder_whose_name_begins_alike_is_another(root: Path) -> None:
    (root.parent / "open-not").mkdir()
    (root.parent / "open-not" / "a.png").write_bytes(png())
    with pytest.raises(MediaRefused):
        fetch([str(root.parent / "open-not" / "a.png")], None, Limits(roots=(str(root),)))


def test_a_file_has_a_bound(root: Path) -> None:
    with pytest.raises(MediaRefused, match="more than 10 bytes, the limit"):
        fetch(["sub/a.png"], None, Limits(roots=(str(root),), bytes=10))
