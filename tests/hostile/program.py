"""What a hostile program is, how one is registered, and the models that many of them share.

    @program(Towers)
    def other_batch_sizes(run: Run) -> Steps:
        for rows in (3, 1, 0):
            yield run(rand(rows, 4))

`run` stands for the module, plain or partitioned. What the script yields is compared, and after it has ended: parameters,
buffers, gradients, modes, random state, and the attributes that the program names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from lanes import OLD_TORCH
from torch import Tensor, nn

from zoo import import_transformers

import_transformers()  # which first makes torchvision importable, for some programs are models of its

Steps = Iterator[object]
Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


class Run(Protocol):
    """A run of a program: calls its module, and knows in which variant it is."""

    module: Any
    """The module, to be used in any other way: changed, saved, hooked."""
    model: Any
    """The plain model: what was partitioned, or the module itself."""
    training: bool
    """Whether the module was built in training mode."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module."""

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module and, in training, sends gradients back. Gives the output and the inputs' gradients."""


Script = Callable[[Run], Steps]


@dataclass(frozen=True)
class Program:
    """A model, and what is done with it.

    Args:
        name: file and function, such as ``shapes.other_batch_sizes``.
        build: makes the model afresh, and all that it reaches outside of itself.
        script: yields what is to be compared.
        example: positional and keyword arguments of a typical call.
        watch: dotted attributes of the module that are compared at the end.
        refused: refusing is right, because no partitioned module could do what the plain one does.
        limit: why it is known to be different; a limit that the README tells of.
        unchecked: the same for a module made without an example, which was never held against eager.
        slow: takes longer than all others.
        bare: also worth trying without an example.
        timeout: seconds after which it hangs.
    """

    name: str
    build: Callable[[], nn.Module]
    script: Script
    example: Callable[[], Arguments]
    watch: tuple[str, ...] = ()
    refused: bool = False
    limit: str = ""
    unchecked: str = ""
    slow: bool = False
    bare: bool = True
    timeout: float = 60.0


PROGRAMS: dict[str, Program] = {}


OLDER = "what an older tracer does in other ways, which are not mended: docs/limits.md" if OLD_TORCH else ""
"""A limit of programs that only newer versions of torch trace as they are meant."""


def kept_in(programs: dict[str, Program]) -> Callable[..., Callable[[Script], Script]]:
    """Registers decorated scripts in a dictionary of a test file's own, by their names alone.

    What it gives takes how the model is built, how the arguments of the example are made after the first, a (3, 4) tensor, and
    why the program is known to be different, if it is.
    """

    def program_here(build: Callable[[], nn.Module], *others: Callable[[], Any], limit: str = "") -> Callable[[Script], Script]:
        def register(script: Script) -> Script:
            name = script.__name__
            programs[name] = Program(name, build, script, lambda: ((rand(), *(make() for make in others)), {}), limit=limit)
            return script

        return register

    return program_here


def holding_in(
    programs: dict[str, Program], also: Callable[[Any], Any] = lambda held: None, *, identity: bool = False
) -> Callable[..., None]:
    """Registers models that read or change what they hold, which is another one in each call, in a dictionary of a test file.

    Args:
        programs: the dictionary.
        also: what is compared of what was held beside it.
        identity: whether forward also gives whether what it read is what the module holds.

    Returns:
        A function of how what is held is read, given it and the rows of the call, of the values that are held, one after the
        other, and of why the program is known to be different, if it is.
    """

    def held(read: Callable[[Any, int], Any], *values: Any, limit: str = "") -> None:
        class Reads(Two):
            def forward(self, x: Tensor) -> tuple[Tensor, Any]:
                found = read(self.held, x.shape[0])
                return self.left(x) + self.right(x), (found, found is self.held) if identity else found

            held = copy.deepcopy(values[0])

        def script(run: Run) -> Steps:
            for number, value in enumerate(values):
                run.module.held = copy.deepcopy(value)
                yield run(rand(3 + number % 2, 4)), run.module.held, also(run.module.held)

        name = f"held_{len(programs)}"
        programs[name] = Program(name, Reads, script, lambda: ((rand(),), {}), limit=limit)

    return held


def program(
    build: Callable[[], nn.Module],
    *args: Callable[[], Any],
    kwargs: Mapping[str, Callable[[], Any]] | None = None,
    watch: str = "",
    **options: Any,
) -> Callable[[Script], Script]:
    """Registers the decorated script; ``args`` and ``kwargs`` make the example's arguments, by default one (3, 4) tensor."""

    def example() -> Arguments:
        positional = args or ((rand,) if kwargs is None else ())
        return tuple(make() for make in positional), {key: make() for key, make in (kwargs or {}).items()}

    def register(script: Script) -> Script:
        name = f"{script.__module__.rpartition('.')[2]}.{script.__name__}"
        assert name not in PROGRAMS, f"two programs are called {name}"
        PROGRAMS[name] = Program(name, build, script, example, tuple(watch.split()), **options)
        return script

    return register


def rand(*shape: int, seed: int = 3, grad: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, (3, 4) of them by default: the same every time, and torch's own generator does not move."""
    made = torch.randn(*(shape or (3, 4)), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).requires_grad_(grad)


def raised(call: Callable[[], object]) -> object:
    """The exception of ``call``, or what it gives. A refusal passes through: it ends the program."""
    try:
        return call()
    except Exception as error:
        if any(base.__name__ == "PartitionerError" for base in type(error).__mro__):
            raise
        return error


class Two(nn.Module):
    """Two branches that could run at the same time. What is made of them is the program's."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x)


class Asserts(Two):
    """Asserts what its layers compute, and what it is given; in test files pytest would write other assertions."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x)
        assert not y.isinf().any(), "inf"
        assert not x.isnan().any(), f"nan among {x.numel()}"
        assert (y < 1e6).all()
        return y * self.right(x)


class AssertsFinite(Two):
    """Asserts one thing, of what a layer computes."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x)
        assert not y.isinf().any(), "inf"
        return y * self.right(x)


class Towers(Two):
    """Two branches, their statistics and random numbers, and a head."""

    def __init__(self, width: int = 4) -> None:
        super().__init__(width)
        self.norm, self.drop = nn.BatchNorm1d(width), nn.Dropout(0.5)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.left(x))) + self.norm(self.right(x)))


def two(forward: Callable[..., Any], **attributes: Any) -> Callable[[], nn.Module]:
    """Builds a model with two branches, the given forward, and copies of the attributes."""

    def build() -> nn.Module:
        model = type("Model", (Two,), {"forward": forward})()
        for name, value in attributes.items():
            setattr(model, name, copy.deepcopy(value))
        return model

    return build
