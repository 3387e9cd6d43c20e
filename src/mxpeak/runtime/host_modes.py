"""Set modes of the host's BLAS and floating-point unit for solvers, independently of the backend."""

from mxpeak.kernels.host.engine.blas import one_thread as one_thread
from mxpeak.kernels.host.engine.subnormals import flushed as flushed
