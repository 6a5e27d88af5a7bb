from __future__ import annotations

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from airflow_tf.core.crc32c import combine


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_the_crc_of_the_whole_follows_from_those_of_its_parts(parts: list[bytes]) -> None:
    whole = 0
    for part in parts:
        whole = combine(whole, google_crc32c.value(part), len(part))
    assert whole == google_crc32c.value(b"".join(parts))


def test_lengths_beyond_the_order_of_the_polynomial_are_combined() -> None:
    piece = b"\0" * 2**20
    zeros, length = google_crc32c.value(piece), len(piece)
    for _ in range(10):  # 1 GiB of zeros by doubling
        zeros, length = combine(zeros, zeros, length), 2 * length
    counted = 0
    for _ in range(2**10):
        counted = google_crc32c.extend(counted, piece)
    assert zeros == counted
