"""What cannot be the name of a file is refused in a message of bounded length."""

import msgspec
import pytest

from contracts.errors import InputError
from contracts.names import check_made_name, check_name, check_scenario, is_name
from contracts.release import Release


@pytest.mark.parametrize("name", ["", "a/b", "..", "../x", ".hidden", "ä", "a" * 81, "a b", "a\n", "x" * 100_000])
def test_names_that_are_no_file_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="scenario: expected 1 to 80 ASCII letters") as refused:
        check_name(name, "scenario")
    assert len(str(refused.value)) < 200
    assert not is_name(name)


def test_a_scenario_is_not_called_as_all_of_them_are() -> None:
    assert check_name("auto", "version") == "auto"
    with pytest.raises(InputError, match="scenario: expected another name than 'auto'"):
        check_scenario("auto")


@pytest.mark.parametrize("name", ["", "a/b", "..", "../x", ".hidden", "ä", "a" * 121, "a\n", "/etc"])
def test_what_is_no_version_is_none_in_a_file_either(name: str) -> None:
    with pytest.raises(InputError, match="version: expected 1 to 120 ASCII letters"):
        check_made_name(name, "version")
    release = {"release_id": "r", "scenario": "s", "two_tower": "t", "index": "i", "created_at": ""}
    assert msgspec.convert(release, Release).index == "i"
    for field in ("release_id", "scenario", "two_tower", "heavy", "index", "previous"):
        with pytest.raises(msgspec.ValidationError, match="matching regex"):
            msgspec.convert({**release, field: name}, Release)


def test_a_release_of_the_longest_scenario_has_a_name() -> None:
    scenario = check_scenario("s" * 80)
    for made in (f"two_tower-{scenario}-0123456789ab", f"{scenario}-20261130T153419Z-cf90da"):
        assert check_made_name(made, "release") == made
