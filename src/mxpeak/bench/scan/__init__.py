"""mxpeak scan: a small LU, GEMM and memory read on every rank at once; which are slow, which compute other bits."""
