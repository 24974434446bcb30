"""What is asked for, and the machine that comes of it."""
