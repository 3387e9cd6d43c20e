"""What a machine can do at best: products of matrices, and memory."""
