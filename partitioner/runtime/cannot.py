"""Why a call cannot be made where state lies on several devices, in words."""

from __future__ import annotations

from partitioner.model.source import user_line


def as_it_lies(name: str, error: Exception) -> str:
    """Why code between graphs cannot go on: it runs as it is, and takes what programs have on another device."""
    return (
        f"{name} runs in part as it is, between graphs, and there, at {user_line(error)}, takes what lies on several devices: "
        f"{error}. Pin the modules whose weights it takes to the first device, on which it finds all else."
    )


def caught_by_the_model(name: str, error: Exception) -> str:
    """Why a call cannot go on as the model does."""
    first = str(error).partition("\n")[0]
    return (
        f"{name} goes on after what an op raises on the data of this call, {type(error).__name__}: {first}, and a program on "
        "several devices cannot. Look at the data before the op, or partition the model on one device."
    )


def under_a_transform(name: str) -> str:
    """Why a call is refused that the tracer cannot enter, or would not be made anew for."""
    return (
        f"{name} is called under a transform of torch.func (grad, vmap, jvp, ...) or a function mode, which the tracer cannot "
        "enter, and with state on several devices nothing runs without it. For such calls partition the model on one device."
    )
