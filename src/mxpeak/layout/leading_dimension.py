"""Choose leading dimensions such that rows (or columns of panels) start on a cache line and in different cache sets."""


def leading_dimension(length: int, itemsize: int, line: int, avoid: int) -> int:
    """Return the least ld ≥ length for which ld·itemsize is a multiple of `line` bytes but not of `avoid` bytes.

    Rows that are a multiple of `avoid` bytes apart share the same cache sets, or the same memory channels.
    """
    entries = line // itemsize
    ld = -(-max(length, 1) // entries) * entries
    return ld + entries if ld * itemsize % avoid == 0 else ld
