"""Tensor parallelism: one copy's graph, shared out over ranks that each do a part of every layer.

    example   ->   the ways of each op   ->   the cheapest sharding   ->   the graph of one rank

The sharding is derived from the graph, not from names of modules: columns and rows of matrix products, heads, channels,
vocabularies, sequences between them, whatever an op allows.
"""
