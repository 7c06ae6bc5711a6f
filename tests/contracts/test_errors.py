import pytest

from contracts.errors import AdsieveError, ArtifactError, ConfigError, InputError, LogError, MismatchError, RequestError


@pytest.mark.parametrize("error", [ConfigError("x"), LogError("x"), RequestError("x", field="query.country")])
def test_bad_input_exits_2(error: AdsieveError) -> None:
    assert isinstance(error, InputError)
    assert error.exit_code == 2


@pytest.mark.parametrize("error", [ArtifactError("x"), MismatchError("x")])
def test_failed_work_exits_1(error: AdsieveError) -> None:
    assert error.exit_code == 1


def test_a_request_error_leads_with_its_field() -> None:
    error = RequestError("expected text, got 3", field="query.country")
    assert str(error) == "query.country: expected text, got 3"
    assert error.field == "query.country"
