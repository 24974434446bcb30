"""Graphs of the tracer's, written anew: modes as properties of ops, and ops that hold graphs or functions as what eager runs."""
