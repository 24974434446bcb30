"""What ranks hold of a model, under its own keys, and the checkpoints that they write of it."""
