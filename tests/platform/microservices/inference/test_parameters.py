"""Requests held against what a model declares: by name, with what is allowed, and never changed."""

import os
from pathlib import Path
from typing import Any

import pytest

from pilotlight.errors import UsageError
from pilotlight.microservices.registry import model_kinds
from pilotlight.microservices.registry.model_kinds import ModelRequest, describe

SEED = {  # the bodies of the documented examples
    "vila": {"media": ["s3://b/video.mp4", "s3://b/image.jpg"], "text": "Describe them", "conv_mode": "auto"},
    "cosmos-rl": {"media": "s3://b/sample.mp4", "text": "What action is happening?", "conv_mode": "auto"},
    "classification_pyt": {"images": ["s3://b/1.jpg", "s3://b/2.jpg"], "batch_size": 1},
    "rtdetr": {"images": ["s3://b/image.jpg"], "confidence_threshold": 0.5},
    "segformer": {"images": "s3://b/image.jpg"},
    "text": {"prompt": "Hello", "max_tokens": 5},
    "cosmos-predict2.5": {"prompt": "a street", "guidance": 7, "num_steps": 35, "seed": 1, "negative_prompt": "rain"},
}


def check(network: str, body: dict[str, Any], declared: str = "") -> ModelRequest:
    return model_kinds.validate(model_kinds.schema(network, declared), body)


def wrong(network: str, body: dict[str, Any], declared: str = "") -> str:
    with pytest.raises(UsageError) as caught:
        check(network, body, declared)
    return str(caught.value)


@pytest.mark.parametrize("network", SEED)
def test_the_documented_bodies_fit(network: str) -> None:
    asked = check(network, SEED[network])
    assert {name: asked.values[name] for name in SEED[network]} == SEED[network]


def test_media_may_be_one_or_several_under_any_of_its_names() -> None:
    assert check("vila", {"media": "a.png", "text": "?"}).media == ("a.png",)
    assert check("vila", {"images": ["a.png", "b.png"], "files": "c.mp4", "text": "?"}).media == (
        "a.png",
        "b.png",
        "c.mp4",
    )


def test_text_may_have_any_of_its_names_but_only_one() -> None:
    assert [check("text", {name: "hi"}).text for name in ("text", "prompt", "question")] == ["hi"] * 3
    assert "text and prompt are equivalent" in wrong("text", {"text": "a", "prompt": "b"})


def test_an_unknown_parameter_is_named_with_what_is_allowed() -> None:
    told = wrong("rtdetr", {"images": "a.png", "confidence": 0.5})
    assert "confidence is unknown" in told
    assert "confidence_threshold" in told


@pytest.mark.parametrize(
    ("network", "name", "value", "must"),
    [
        ("vila", "temperature", 2.5, "a number from 0 to 2"),
        ("vila", "temperature", "1", "a number from 0 to 2"),
        ("vila", "temperature", True, "a number from 0 to 2"),
        ("vila", "top_p", 0, "above 0"),
        ("vila", "max_tokens", 1.5, "a whole number from 1"),
        ("vila", "max_tokens", 0, "a whole number from 1"),
        ("vila", "media", [], "a list of at least one"),
        ("vila", "media", [1], "a list of at least one"),
        ("vila", "media", None, "text, or a list"),
        ("vila", "text", "", "must be text"),
        ("rtdetr", "confidence_threshold", -0.1, "a number from 0 to 1"),
        ("rtdetr", "batch_size", 100_000, "a whole number from 1 to 256"),
        ("cosmos-predict2.5", "inference_type", "dream", "one of text2world, image2world, video2world"),
        ("cosmos-predict2.5", "num_steps", -1, "a whole number from 1"),
        ("cosmos-rl", "guidance", 7, "is unknown"),
        ("cosmos-rl", "seed", 7, "is unknown"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_never_clamped(network: str, name: str, value: Any, must: str) -> None:
    told = wrong(network, {**SEED[network], name: value})
    assert name in told
    assert must in told


def test_everything_wrong_is_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        check("rtdetr", {"confidence_threshold": 3, "who": 1})
    problems = str(caught.value).split("; ")
    assert len(problems) == 3
    assert any("images or media or files is missing" in each for each in problems)


def test_a_network_of_no_kind_is_refused_until_a_file_beside_the_model_names_one() -> None:
    with pytest.raises(UsageError, match=r"network_arch = mine.*parameters\.yaml"):
        check("mine", {})
    assert check("mine", {"images": "a.png"}, "kind: classification").media == ("a.png",)


def test_a_model_declares_parameters_of_its_own_beside_it(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    (tmp_path / "parameters.yaml").write_text(
        "kind: detection\n"
        "labels: [cat, dog]\n"
        "without: [files]\n"
        "parameters:\n"
        "  nms: {type: number, least: 0, most: 1, default: 0.7, help: boxes that overlap more are one}\n"
    )
    declared = model_kinds.read_declaration(tmp_path / "model.onnx")
    asked = check("whatever", {"images": "a.png", "nms": 0.2}, declared)
    assert asked == ModelRequest(
        ("a.png",),
        "",
        {"batch_size": 1, "confidence_threshold": 0.5, "images": "a.png", "nms": 0.2},
    )
    assert model_kinds.schema("whatever", declared).labels == ("cat", "dog")
    assert "files is unknown" in wrong("whatever", {"files": "a.png"}, declared)
    assert "nms = 2, must be a number from 0 to 1" in wrong("whatever", {"images": "a", "nms": 2}, declared)


def test_a_declaration_that_cannot_be_read_says_where() -> None:
    with pytest.raises(UsageError, match=r"parameters\.yaml.*labels"):
        check("vila", {}, "labels: 3")


def test_every_default_fits_its_own_bounds_and_every_parameter_says_what_it_is() -> None:
    for network in model_kinds.networks():
        of = model_kinds.schema(network)
        needed = {names[0]: [1] if of.parameters[names[0]].type == "json" else "x" for names in of.needs}
        told = {name: each.default for name, each in of.parameters.items() if each.default is not None}
        check(network, {**told, **needed})
        assert all(each.help and describe(each) for each in of.parameters.values())


def test_no_kind_beside_a_model_is_no_file(tmp_path: Path) -> None:
    assert model_kinds.read_declaration(tmp_path / "model.onnx") == ""
    assert model_kinds.read_declaration(tmp_path) == ""


def test_what_an_org_puts_in_place_of_the_file_is_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    model, secret = tmp_path / "model", tmp_path / "secret"
    model.mkdir()
    secret.write_text("root:*:20228:0:99999:7:::")
    file = model / model_kinds.FILE
    for put in (
        lambda: file.symlink_to(secret), lambda: os.mkfifo(file), lambda: file.symlink_to(file), file.mkdir,
        lambda: file.write_bytes(b"#" * (model_kinds.MAX_BYTES + 1)),
    ):  # fmt: skip
        put()
        with pytest.raises(UsageError, match=r"parameters\.yaml beside the model") as refused:
            model_kinds.read_declaration(model)
        assert "root" not in str(refused.value)
        file.rmdir() if file.is_dir() else file.unlink()
    (model / "own").write_text("kind: tensors")
    file.symlink_to("own")
    assert model_kinds.read_declaration(model) == "kind: tensors"
