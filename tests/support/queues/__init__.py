"""Virtual queues: a GPU without one, on which everything is computed at once and the order of its work is kept."""
