"""What is fastest here: kernels measured one by one, settings searched by short runs, the winner checked and kept."""
