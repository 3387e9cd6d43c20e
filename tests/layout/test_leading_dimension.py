"""Test leading dimensions for every length of three pages: the least one that aligns rows, and never a page apart."""

from itertools import product

from mxpeak.layout.leading_dimension import leading_dimension


def test_it_is_the_least_one_that_keeps_both_rules() -> None:
    for itemsize, (line, avoid), length in product((1, 4, 8), ((64, 4096), (128, 1024)), range(3 * 4096 // 8)):
        ld = leading_dimension(length, itemsize, line, avoid)
        allowed = [x for x in range(max(length, 1), ld + 1) if x * itemsize % line == 0 and x * itemsize % avoid != 0]
        assert allowed == [ld], (length, itemsize, line, avoid)
