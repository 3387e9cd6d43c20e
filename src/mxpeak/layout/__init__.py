"""Data distributions and operation orders as integers, without arrays and communication."""
