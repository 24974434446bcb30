"""Throughput: placements with the smallest largest load of a processor.

units_of > staged > Annealing > Model, Neighbourhoods
groups     stages   moves       CP-SAT, where it is installed
"""
