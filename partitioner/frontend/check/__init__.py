"""Whether a traced program computes what its model computes, and where it does not."""

from partitioner.frontend.check.compare import Comparison, compare, try_eager
from partitioner.frontend.check.locate import blame

__all__ = ["Comparison", "blame", "compare", "try_eager"]
