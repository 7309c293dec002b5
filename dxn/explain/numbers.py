"""How numbers and shares are written."""

EDGE = 0.0005  # smallest number that is written without an exponent


def number(value: float, digits: int = 4) -> str:
    """Return a number with at most this many significant digits, such as 0.8125 or 123,400."""
    rounded = float(f"{value:.{digits}g}")
    if rounded and (abs(rounded) < EDGE or abs(rounded) >= 1e9):
        return f"{rounded:.{digits}g}"
    return f"{rounded:,.{digits + 4}f}".rstrip("0").rstrip(".")


def percent(share: float) -> str:
    """Return a share as a percentage, with one decimal below 10 %."""
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"
