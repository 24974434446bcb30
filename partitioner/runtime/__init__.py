"""Executables to Parallel: one nn.Module around programs and the calls that each is for."""
