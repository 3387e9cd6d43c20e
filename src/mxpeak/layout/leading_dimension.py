"""Leading dimensions: rows (columns of panels) in whole lines of memory, whose beginnings share no sets of a cache."""


def leading_dimension(length: int, itemsize: int, line: int, avoid: int) -> int:
    """The least ld ≥ length with ld·itemsize a multiple of `line` bytes, and none of `avoid` bytes.

    Rows that lie a multiple of `avoid` bytes apart share the same sets of a cache, or the same channels of memory.
    """
    entries = line // itemsize
    ld = -(-max(length, 1) // entries) * entries
    return ld + entries if ld * itemsize % avoid == 0 else ld
