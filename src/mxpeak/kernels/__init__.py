"""The same operations in every backend, side by side; `contract` says what each does and overwrites."""
