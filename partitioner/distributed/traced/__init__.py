"""A traced model as stages and ranks see it: one graph, and how a call becomes its inputs and its results."""
