"""What cannot be the name of a file is refused in a message of bounded length."""

import pytest

from contracts.errors import InputError
from contracts.names import check_name, check_scenario, is_name


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
