"""Tell numbers from other plain values."""


def is_number(value: object) -> bool:
    """Return True for plain numbers, which True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
