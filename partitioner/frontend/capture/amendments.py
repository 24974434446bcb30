"""All that Dynamo does otherwise here. Of two that amend one method the later one is asked first, so they have an order.

python/    what Python and its library do, and what has to be asked again before each call
tensors/   what torch does with tensors
"""

# ruff: noqa: F401, I001

from __future__ import annotations

from partitioner.frontend.capture.python import handlers
from partitioner.frontend.capture.tensors import checks
from partitioner.frontend.capture.python import absent, asked, calls, contexts, folded
from partitioner.frontend.capture.tensors import functions, gradients, hooked, targets, inplace
from partitioner.frontend.capture.python import iterators, keywords
from partitioner.frontend.capture.tensors import known
from partitioner.frontend.capture.python import leaner, lookups, made, midway, numbers, numpys, operators
from partitioner.frontend.capture.tensors import losses, padded, places, seeds, waiting
from partitioner.frontend.capture.python import polyfills, scopes, sharing, told, values, written, answers
from partitioner.frontend.capture.tensors import averages
from partitioner.frontend.capture.python import methods
