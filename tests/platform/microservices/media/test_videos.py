"""Videos: decoded to frames within the same caps, as the container that they are and no other."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.platform.microservices.media.conftest import Web, video

from pilotlight.microservices.media import Limits, MediaRefused, fetch
from pilotlight.microservices.media.images import Media, identify
from pilotlight.microservices.media.limits import MediaError
from pilotlight.microservices.media.videos import check_video, frames

SMALL = Limits(pixels=10_000, frames=50)
WHOLE = video(4)


@pytest.mark.parametrize(
    ("container", "codec", "mime"),
    [("mp4", "mpeg4", "video/mp4"), ("matroska", "mpeg4", "video/webm"), ("avi", "mpeg4", "video/x-msvideo"),
     ("mov", "mpeg4", "video/mp4")],
)  # fmt: skip
def test_every_container_is_decoded(container: str, codec: str, mime: str) -> None:
    data = video(6, container=container, codec=codec)
    media = identify("a", data)
    assert (media.kind, media.mime) == ("video", mime)
    found = frames(media, SMALL)
    assert found.shape == (6, 24, 32, 3)
    assert found[0].mean() < 30
    assert found[-1].mean() > 220


def test_of_a_long_one_frames_at_equal_distances_are_taken() -> None:
    found = frames(identify("a", video(40)), SMALL, most=4)
    assert found.shape == (4, 24, 32, 3)
    means = [each.mean() for each in found]
    assert means == sorted(means)
    assert means[-1] - means[0] > 120


def test_too_many_frames_are_refused_by_the_container_and_while_decoding() -> None:
    media = identify("a", video(60))
    with pytest.raises(MediaError, match="more than 50 frames, the limit"):
        check_video(media, SMALL)
    with pytest.raises(MediaError, match="more than 50 frames, the limit"):
        frames(media, SMALL)


def test_too_many_pixels_are_refused() -> None:
    with pytest.raises(MediaError, match="160 x 120 pixels"):
        check_video(identify("a", video(3, size=(160, 120))), SMALL)
    with pytest.raises(MediaError, match="pixels"):
        check_video(identify("a", video(2, size=(1600, 1200), container="avi")), SMALL)


def test_frames_in_memory_have_a_bound() -> None:
    with pytest.raises(MediaError, match="request fewer frames"):
        frames(identify("a", video(12)), replace(SMALL, decoded_pixels=32 * 24 * 3))


@pytest.mark.parametrize("keep", [40, 200])
def test_a_damaged_video_is_refused_in_words(keep: int) -> None:
    with pytest.raises(MediaError, match=r"is damaged|no frames"):
        frames(identify("a", video(12, container="avi")[:keep]), SMALL)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_video_with_a_byte_changed_is_read_or_refused(at: int, value: int) -> None:
    data = bytearray(WHOLE)
    data[at] = value
    try:
        media = identify("a", bytes(data))
        assert media.kind != "video" or len(frames(media, SMALL)) <= 50
    except MediaError:
        pass


def test_a_playlist_that_calls_itself_a_video_opens_nothing(web: Web, limits: Limits) -> None:
    """FFmpeg would follow the list, were it free to guess what it is given."""
    web.paths["/inner.mp4"] = video(2)
    playlist = f"#EXTM3U\n#EXTINF:1,\n{web.url('/inner.mp4')}\n".encode()
    web.paths["/outer.mp4"] = playlist
    with pytest.raises(MediaRefused, match="is neither an image"):
        fetch([web.url("/outer.mp4")], None, limits)
    with pytest.raises(MediaError, match="is damaged"):
        frames(Media("a.mp4", "video", "mp4", playlist), limits)
    assert web.asked == ["/outer.mp4"]


def test_without_pyav_a_video_is_refused_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    media = identify("a", video(2))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MediaError, match="the operator installs with the media extra"):
        check_video(media, SMALL)
