"""How numbers and shares are written."""

EDGE = 0.0005  # smallest number that is written without an exponent


def number(value: float, digits: int = 4) -> str:
    """Return a number with at most this many significant digits, such as 0.8125 or 123,400."""
    rounded = float(f"{value:.{digits}g}")
    if rounded and (abs(rounded) < EDGE or abs(rounded) >= 1e9):
        return f"{rounded:.{digits}g}"
    return f"{rounded:,.{digits + 4}f}".rstrip("0").rstrip(".")


def percent(share: float) -> str:
    """Return a share as a percentage, with one decimal below 10 % and above 99 %.

    Only a share of exactly 0 or 1 is written as 0% or 100%.
    """
    if 0 < share < EDGE:
        return "<0.1%"
    if 1 - EDGE < share < 1:
        return ">99.9%"
    is_close = 0 < share < 0.0995 or 0.9905 < share < 1
    return f"{share:.1%}" if is_close else f"{share:.0%}"
