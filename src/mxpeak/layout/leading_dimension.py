"""Leading dimensions: rows (columns of panels) in whole lines of memory that begin in different sets of a cache."""


def leading_dimension(length: int, itemsize: int, line: int, avoid: int) -> int:
    """Return the least ld ≥ length for which ld·itemsize is a multiple of `line` bytes but not of `avoid` bytes.

    Rows that are a multiple of `avoid` bytes apart share the same sets of a cache, or the same channels of memory.
    """
    entries = line // itemsize
    ld = -(-max(length, 1) // entries) * entries
    return ld + entries if ld * itemsize % avoid == 0 else ld
