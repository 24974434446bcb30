"""Whether a traced program computes what its model computes, and where it does not."""

from partitioner.check.blame import blame
from partitioner.check.compare import Comparison, compare, try_eager

__all__ = ["Comparison", "blame", "compare", "try_eager"]
