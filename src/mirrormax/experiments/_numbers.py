"""Numbers as people write them."""

from __future__ import annotations

import math

from mirrormax._statistics import Estimate, Sample

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """A number with so many significant digits, a true minus sign, and powers of ten instead of many zeros.

    >>> number(-0.01234), number(0.0), number(3.1e-7, 2), number(2.0, sign=True), number(123456.0)
    ('−0.0123', '0', '3.1×10⁻⁷', '+2', '123,000')
    """
    value = float(value)
    if not math.isfinite(value):
        return "—" if math.isnan(value) else "∞" if value > 0 else "−∞"
    mark = "−" if value < 0 else "+" if sign and value > 0 else ""
    size = float(f"{abs(value):.{digits - 1}e}")
    if size and not 1e-3 <= size < 1e6:
        mantissa, power = f"{size:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        times = "" if mantissa == "1" else f"{mantissa}×"
        return f"{mark}{times}10{str(int(power)).translate(SUPERSCRIPTS)}"
    return f"{mark}{size:,.{digits}g}" if size < 10**digits else f"{mark}{size:,.0f}"


def percent(share: float, places: int = 0) -> str:
    """A share in percent.

    >>> percent(0.123), percent(-0.0123, 1)
    ('12 %', '−1.2 %')
    """
    return f"{100 * share:.{places}f} %".replace("-", "−")


def interval(low: float, high: float, *, digits: int = 2, sign: bool = False) -> str:
    """An interval in brackets; nothing where there is none, as for a single run."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f" [{number(low, digits, sign=sign)}, {number(high, digits, sign=sign)}]"


def spread(mean: float, std: float | None) -> str:
    """A number with its standard deviation, if there is one, both to the decimal of the latter's second digit.

    >>> spread(80.0, 0.082), spread(0.00199, 0.0028), spread(1234.5, 12.0), spread(3.0, None)
    ('80.000 ± 0.082', '0.0020 ± 0.0028', '1,234 ± 12', '3')
    """
    if std is None or not math.isfinite(std) or not math.isfinite(mean):
        return number(mean)
    if std == 0:
        return f"{number(mean)} ± 0"
    places = max(0, 1 - math.floor(math.log10(std)))
    if places > 5:
        return f"{number(mean)} ± {number(std, 2)}"
    return f"{mean:,.{places}f} ± {std:,.{places}f}".replace("-", "−")


def estimate(value: Estimate, *, digits: int = 3, sign: bool = False) -> str:
    """A number with its interval."""
    return f"{number(value.mean, digits, sign=sign)}{interval(value.low, value.high, sign=sign)}"


def sample(value: Sample) -> str:
    """A mean with its spread, and over how many trials."""
    return f"{spread(value.mean, value.std)}, {value.trials} trials"
