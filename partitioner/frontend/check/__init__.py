"""Whether a traced graph computes what its model computes, and where it does not."""

from partitioner.frontend.check.compare import Comparison, compare, try_eager
from partitioner.frontend.check.locate import locate_difference

__all__ = ["Comparison", "compare", "locate_difference", "try_eager"]
