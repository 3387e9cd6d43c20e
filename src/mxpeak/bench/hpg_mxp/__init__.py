"""HPG-MxP: GMRES with multigrid on a sparse matrix, mixed against double precision."""
