"""The exceptions that adsieve raises on purpose.

    AdsieveError               the work failed                                   exit code 1
    ├── InputError             what the user handed in is wrong                  exit code 2
    │   ├── ConfigError        a configuration or schema file
    │   ├── LogError           a log dataset
    │   ├── NotCurrentError    another release than the one that was named is the current one
    │   └── RequestError       a ranking request (HTTP 422)
    └── ArtifactError          a bundle, index or release is truncated or altered
        └── MismatchError      two versions or fingerprints that do not belong together
            └── WrongArtifactError   a path leads to something else than was asked for   exit code 2

Every message names the file or field, the value, and what was expected. Anything else that escapes a command is a bug.
``next_step`` is what the command line tells to do about it, where one error knows better than its kind.
"""


class AdsieveError(Exception):
    """Root of all errors raised on purpose."""

    exit_code = 1

    def __init__(self, *message: object, next_step: str | None = None) -> None:
        super().__init__(*message)
        self.next_step = next_step


class InputError(AdsieveError):
    """What the user handed in is wrong; nothing was changed."""

    exit_code = 2


class ConfigError(InputError):
    """A configuration or schema file is malformed."""


class LogError(InputError):
    """A log dataset breaks its contract."""


class NotCurrentError(InputError):
    """A pointer names another release than its caller saw, so it was not moved."""


class RequestError(InputError):
    """A ranking request has a field of the wrong type or value.

    Args:
        message: What was found and what was expected.
        field: Dotted path of the field in the request, such as ``query.country``.
    """

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ArtifactError(AdsieveError):
    """A bundle, index or release on disk is incomplete or altered."""


class MismatchError(ArtifactError):
    """Two versions or fingerprints do not belong together."""


class WrongArtifactError(MismatchError):
    """A path that was handed in leads to nothing, or to something else than was asked for."""

    exit_code = 2
