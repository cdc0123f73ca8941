"""Numbers as readers see them."""

__all__ = ["format_duration", "format_bytes", "format_number", "format_signed"]


def format_number(value: float, digits: int = 1) -> str:
    """A number with so many digits after the point.

    Examples:
        >>> number(-0.04), number(14.06, 2)
        ('0.0', '14.06')
    """
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def format_signed(value: float, digits: int = 1) -> str:
    """A difference, with its sign.

    Examples:
        >>> signed(-6.94), signed(0.31), signed(-0.01)
        ('−6.9', '+0.3', '0.0')
    """
    text = format_number(value, digits)
    return f"+{text}" if round(value, digits) > 0 else text


def format_duration(seconds: float) -> str:
    """A length of time in its two largest units.

    Examples:
        >>> duration(0.25), duration(75), duration(3 * 3600 + 125)
        ('0.2 s', '1 min 15 s', '3 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def format_bytes(size: int | None) -> str:
    """A number of bytes in binary units; a dash where it is not known.

    Examples:
        >>> memory(3 * 2**20), memory(5 * 2**30), memory(None)
        ('3 MiB', '5.0 GiB', '–')
    """
    if size is None:
        return "–"
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
