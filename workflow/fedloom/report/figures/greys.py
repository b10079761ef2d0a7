"""Tell which colours look alike in grey print."""

# two colours whose lightness differs by less, of 100, cannot be told apart in grey print
LEAST_DIFFERENCE = 10
# CIE's weights of red, green and blue in luminance, of sRGB's primaries (IEC 61966-2-1)
WEIGHTS = (0.2126, 0.7152, 0.0722)


def lightness(colour: str) -> float:
    """Return the lightness L* of a colour #RRGGBB, from 0 for black to 100 for white (CIE 1976)."""
    luminance = 0.0
    for weight, first in zip(WEIGHTS, (1, 3, 5), strict=True):
        luminance += weight * _linear(int(colour[first : first + 2], 16) / 255)

    # near black, the cube root is replaced by a line
    if luminance <= 216 / 24389:
        return luminance * 24389 / 27
    return 116 * luminance ** (1 / 3) - 16


def _linear(value: float) -> float:
    """Return the light of a channel of sRGB, both from 0 to 1."""
    if value <= 0.04045:
        return value / 12.92
    return ((value + 0.055) / 1.055) ** 2.4


def are_close(colour: str, other: str) -> bool:
    """Return True if two colours, each #RRGGBB, look alike in grey print."""
    return abs(lightness(colour) - lightness(other)) < LEAST_DIFFERENCE
