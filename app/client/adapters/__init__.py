"""Guards in agent frameworks: one module each, which imports its framework; nothing here imports them all."""
