"""Throughput: placements with the smallest largest load of a processor.

units_of > staged > Annealing > Model, Neighbourhoods
groups     stages   moves       CP-SAT, where it is installed
"""

from partitioner.planner.throughput.bound import load_bound
from partitioner.planner.throughput.solve import balanced, stages, stages_in_a_line

__all__ = ["balanced", "load_bound", "stages", "stages_in_a_line"]
