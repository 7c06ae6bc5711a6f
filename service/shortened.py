"""Texts that are told or logged hold values of requests, which may be megabytes long."""


def shortened(text: str, most: int) -> str:
    """A text of at most ``most`` characters and a note: its beginning and its end, which tells what was expected.

    Example:
        >>> shortened("0123456789", 8)
        '0123 [2 more characters] 6789'
        >>> shortened("01234567", 8)
        '01234567'
    """
    left_out = len(text) - most
    if left_out <= 0:
        return text
    return f"{text[: most // 2]} [{left_out:,} more characters] {text[-(most // 2) :]}"
