"""The errors a user can cause. Each says what is wrong, where, the values that disagree, and what to do next.

All are `ValueError`s, so a caller who does not know this package can still catch them; what is our own fault is an
`AssertionError` and never one of these.
"""


class PartitionerError(ValueError):
    """Base of every error that this package raises for its user."""


class SpecError(PartitionerError):
    """A spec, or the arguments that stand for one, is wrong. Lists every fault with its path in the document."""


class TraceError(PartitionerError):
    """No front end could turn the model into a graph. Names the model's source line and each front end's reason."""


class PlacementError(PartitionerError):
    """No placement meets the pins, colocations and memory caps."""


class InputError(PartitionerError):
    """A call's inputs do not fit the model: structure, dtype or shape."""


class DifferenceError(PartitionerError):
    """The traced program does not compute what the model computes. Names the first op whose value differs."""


class VerifyError(PartitionerError):
    """A program breaks a rule of the verifier. Carries every fault found."""


class RanksError(PartitionerError):
    """Ranks disagree, or one of them failed. Names the rank, its stage and the cause."""


class CheckpointError(PartitionerError):
    """A checkpoint of ranks cannot be written, or does not fit. Names the key or the rank."""
