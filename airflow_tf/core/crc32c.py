"""CRC32C of a whole from the CRC32C of its parts, so that parts may be read in any order."""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed
_ONE = 1 << 31  # the polynomial 1: the highest power is the lowest bit
_TO_THE_EIGHTH = 1 << 23  # x^8: one byte


def combine(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC32C of two pieces joined, given those of the pieces and the length of the second.

    Appending n zero bytes multiplies a CRC by x^(8n) modulo the polynomial, and CRCs add without carry.
    """
    factor, power, left = _ONE, _TO_THE_EIGHTH, second_bytes
    while left:
        if left & 1:
            factor = _multiply(factor, power)
        power = _multiply(power, power)
        left >>= 1
    return _multiply(factor, first) ^ second


def _multiply(left: int, right: int) -> int:
    """Multiply two polynomials of degree 31 at most modulo the CRC's."""
    product, bit = 0, _ONE
    while bit:
        if left & bit:
            product ^= right
        bit >>= 1
        right = right >> 1 ^ _POLYNOMIAL if right & 1 else right >> 1
    return product
