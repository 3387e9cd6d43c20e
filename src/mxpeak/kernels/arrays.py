"""NumPy as an array namespace: itself where it follows the array API, since 2.1, and else as array-api-compat has it.

To load the latter takes longer than to load NumPy, for it asks for all that NumPy loads only when asked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

xp: Any = np
if not hasattr(np, "unstack"):  # the last that NumPy lacked
    import array_api_compat.numpy

    xp = array_api_compat.numpy
