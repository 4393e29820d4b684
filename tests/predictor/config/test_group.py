"""Groups of settings: fields by name with their defaults, frozen, equal by value."""

from dataclasses import FrozenInstanceError, field, fields, replace

import pytest

from pilotlight_predictor.config.settings_group import SettingsGroup


class Inner(SettingsGroup):
    number: int = 1


class Outer(SettingsGroup):
    name: str
    inner: Inner = Inner()
    notes: dict[str, str] = field(default_factory=dict)


def test_what_is_not_given_has_its_default() -> None:
    made = Outer(name="a")
    assert (made.name, made.inner.number, made.notes) == ("a", 1, {})
    assert made.notes is not Outer(name="b").notes


def test_a_field_that_is_missing_or_unknown_is_named() -> None:
    with pytest.raises(TypeError, match="the field name is required"):
        Outer()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Inner has no field numbr"):
        Inner(numbr=2)  # type: ignore[call-arg]


def test_nothing_can_be_changed_or_removed() -> None:
    made = Inner()
    with pytest.raises(FrozenInstanceError, match="number cannot be changed"):
        made.number = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="number cannot be removed"):
        del made.number
    assert made.number == 1


def test_they_are_compared_by_value() -> None:
    assert Outer(name="a") == Outer(name="a", inner=Inner(number=1))
    assert Outer(name="a") != Outer(name="a", inner=Inner(number=2))
    assert len({Inner(), Inner(number=1), Inner(number=2)}) == 2
    assert Inner() != 1


def test_they_are_dataclasses_to_whoever_reads_their_fields() -> None:
    assert [item.name for item in fields(Outer)] == ["name", "inner", "notes"]
    assert repr(replace(Outer(name="a"), name="b")) == "Outer(name='b', inner=Inner(number=1), notes={})"
