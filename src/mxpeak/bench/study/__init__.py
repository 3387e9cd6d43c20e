"""How much a random matrix needs its LU: pivots, residuals, unpreconditioned GMRES."""
