"""Which releases rank a request: that of its scenario, or with ``auto`` all, each for the ads of its own scenario."""

from contracts.errors import AdsieveError, RequestError
from contracts.names import AUTO
from service.releases import LoadedRelease, Snapshot


class NotServingError(AdsieveError):
    """No release is loaded yet (HTTP 503)."""


def route(scenario: str, snapshot: Snapshot) -> tuple[list[LoadedRelease], list[LoadedRelease]]:
    """The releases that rank a request, and the others that only tell where an ad belongs.

    With ``auto`` a candidate goes to the release whose index holds it; should several hold it, to the first by name.

    Raises:
        RequestError: No release is of this scenario.
        NotServingError: There is no release at all.
    """
    releases = snapshot.releases
    if not releases:
        raise NotServingError("no release is loaded")
    if scenario == AUTO:
        return list(releases.values()), []
    if scenario not in releases:
        expected = ", ".join((AUTO, *releases))
        raise RequestError(f"unknown scenario {scenario!r}, expected one of {expected}", field="scenario")
    return [releases[scenario]], [loaded for name, loaded in releases.items() if name != scenario]
