"""What ends work that is under way when the process is told to stop."""

from contracts.errors import AdsieveError


class StoppingError(AdsieveError):
    """The process is about to end, so nothing new is loaded."""
