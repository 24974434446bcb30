"""A simulated accelerator, and what is tried on it."""
