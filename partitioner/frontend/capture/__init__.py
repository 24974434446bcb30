"""Module to torch.fx graph: the tracers, and what they share."""
