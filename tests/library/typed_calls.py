"""Check the types of the public functions with mypy, which reads this file but does not run it.

Lines with an expected error have a `type: ignore`: mypy reports an unused one.
"""

from __future__ import annotations

from typing import assert_type

import mxpeak as mx
from mxpeak.records import Result

assert_type(mx.run.hpl(), Result)
assert_type(mx.run.hpl(n=5000, nb=192, ranks=4, grid=(2, 2), bcast="1ringM"), Result)
assert_type(mx.run.hpl(n=(4000, 8000), nb=192), list[Result])
assert_type(mx.run.hpl(n=1000, grid=[(1, 2), (2, 1)]), list[Result])
assert_type(mx.run.hpl(n=1000, study="strong", ranks_list=(1, 2)), list[Result])
assert_type(mx.run.hpl_mxp(n=4000, precision="bf16", refine="gmres", min_share="80%"), Result)
assert_type(mx.run.hpl_mxp(n=4000, precision=("fp32", "bf16")), list[Result])
assert_type(mx.run.hpg_mxp(nx=64, rt=10.0, mg_precision=("bf16", "fp32")), Result)
assert_type(mx.run.hpcg(nx=64, rt="30m", storage="packed"), Result)
assert_type(mx.run.norms(n=1000, kind="one", dtype="float32"), Result)
assert_type(mx.run.norms(n=1000), list[Result])

mx.run.hpl(n=5000, blocksize=192)  # type: ignore
mx.run.hpl(n="large")  # type: ignore
mx.run.hpl(order="diagonal")  # type: ignore
mx.run.hpcg(kind="one")  # type: ignore
print(mx.solved)  # type: ignore
