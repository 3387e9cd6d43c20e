"""HPG-MxP: mixed-precision GMRES with multigrid, sparse."""
