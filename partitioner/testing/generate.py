"""Recipe in, `nn.Module` out: its forward is real Python source, so it traces, prints and debugs as a written module does."""

from __future__ import annotations

import hashlib
import linecache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from partitioner.errors import SpecError
from partitioner.ir.words import hint
from partitioner.testing import layers, reads, writes  # noqa: F401  (each registers its kinds)
from partitioner.testing.recipe import INPUT_NAMES, OUTPUTS, Recipe
from partitioner.testing.writer import IMAGE_SIDE, REGISTRY, Value, Writer

KINDS: tuple[str, ...] = ("add", *(name for name in REGISTRY if name != "add"))
"""The kinds of step, the plainest first, because hypothesis shrinks towards the first."""


class Block(nn.Module):
    """A nested module: two layers, an in-place activation between them, and a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, width) to the same shape."""
        hidden = self.relu(self.first(x))
        return torch.add(x, self.second(hidden))


class Recorder(nn.Module):
    """Adds the running mean of everything that passed through it, and keeps that mean in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps any shape to itself."""
        self.mean.copy_(self.mean * 0.9 + x.detach().mean() * 0.1)
        return x + self.mean


class GeneratedModule(nn.Module):
    """Base of every module that `build` makes. `recipe` is what it was made from, `source` its class as Python text."""

    recipe: Recipe
    source: str

    def example_inputs(self, seed: int = 0, batch: int | None = None) -> tuple[torch.Tensor, ...]:
        """Inputs for the forward, the same for the same seed, leaving torch's own generator alone.

        Args:
            seed: what the values are drawn from.
            batch: another size for dimension 0; the recipe's own when None.

        Returns:
            One float32 tensor for each input, (batch, width), or (batch, width, 4, 4) for an image. Each requires a gradient,
            except the third, which the forward may write in place.
        """
        generator = torch.Generator().manual_seed(seed)
        recipe = self.recipe
        inputs = []
        for index, name in enumerate(INPUT_NAMES[: recipe.inputs]):
            side = (IMAGE_SIDE, IMAGE_SIDE) if recipe.image and index == 0 else ()
            value = torch.randn(batch or recipe.batch, recipe.width, *side, generator=generator)
            inputs.append(value.requires_grad_(name != "state"))
        return tuple(inputs)

    def __repr__(self) -> str:
        return f"{self.source}\n# build({self.recipe})"

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        """How hypothesis prints a failing example: as code, which its default, the call that made it, would hide."""
        printer.text(repr(self))  # type: ignore[attr-defined]


def build(recipe: Recipe) -> GeneratedModule:
    """The module that a recipe describes: the same recipe gives the same source and the same parameters.

    Args:
        recipe: any recipe; operands are picked modulo what there is, so none is illegal.

    Returns:
        A module in training mode that `torch.fx.symbolic_trace` and `torch.export.export` both take.

    Raises:
        SpecError: a step's kind, or the form of the output, is not known.

    >>> from partitioner.testing import Recipe
    >>> from partitioner.testing import Step
    >>> from partitioner.testing import build
    >>> module = build(Recipe((Step("linear"), Step("view_write")), inputs=1))
    >>> print(module.source)
    class Generated(GeneratedModule):
        def __init__(self) -> None:
            super().__init__()
            self.linear_6_0 = nn.Linear(6, 6)
    <BLANKLINE>
        def forward(self, x):
            # linear
            v1 = self.linear_6_0(x)
            # view_write
            v2 = v1[:, 1:]
            v2.mul_(0.5)
            v3 = v1 + 1.0
            return v3
    <BLANKLINE>
    >>> module(*module.example_inputs(seed=0)).shape
    torch.Size([3, 6])
    """
    source = write(recipe)
    made = make_class(source)
    made.recipe, made.source = recipe, source
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return made()


def make_class(source: str) -> type[GeneratedModule]:
    """Runs the source of a class, and shows it to tracebacks and debuggers."""
    filename = f"<generated module {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "__name__": __name__}
    namespace |= {cls.__name__: cls for cls in (GeneratedModule, Block, Recorder)}
    exec(compile(source, filename, "exec"), namespace)
    made: type[GeneratedModule] = namespace["Generated"]
    return made


def written(recipe: Recipe) -> Writer:
    """The lines of the forward, and what is known of each value in them."""
    writer = Writer(recipe)
    for step in recipe.steps:
        if step.kind not in REGISTRY:
            raise SpecError(f"no kind of step is called {step.kind!r}{hint(step.kind, KINDS)}, and all are in KINDS")
        writer.do(f"# {step.kind}")
        REGISTRY[step.kind](writer, step)
    return writer


def write(recipe: Recipe) -> str:
    """The source of the class that a recipe describes."""
    writer = written(recipe)
    names = ", ".join(INPUT_NAMES[: recipe.inputs])
    return "\n".join(
        [
            "class Generated(GeneratedModule):",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            *(f"        self.{name} = {value}" for name, value in writer.attributes.items()),
            "",
            f"    def forward(self, {names}):",
            *(f"        {line}" for line in writer.lines),
            f"        return {_outputs(recipe, writer.values)}",
            "",
        ]
    )


def _outputs(recipe: Recipe, values: list[Value]) -> str:
    """The newest value, and, in the forms that hold several, one from the middle and the oldest that is not an input."""
    if recipe.outputs not in OUTPUTS:
        raise SpecError(f"outputs is {recipe.outputs!r}, and must be one of {', '.join(OUTPUTS)}")
    made = values[recipe.inputs :] or values
    last, middle, first = made[-1], made[len(made) // 2], made[0]
    return {
        "tensor": f"{last}",
        "tuple": f"({last}, {middle})",
        "list": f"[{last}, {middle}, {first}]",
        "dict": f"{{'last': {last}, 'first': {first}}}",
        "nested": f"{{'last': {last}, 'more': ({middle}, [{first}, {last}])}}",
    }[recipe.outputs]
