"""Graphs of the tracer's, written anew: modes as properties of ops, and graphs or functions in ops as what eager runs."""
