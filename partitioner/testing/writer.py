"""Writes the source of a random module, one legal line after another.

The hard part of a random module with in-place ops is that eager's own backward must stay valid: autograd refuses a write to
a tensor that it saved, to a leaf, to a view that overlaps itself, and to one of several views that one op returned. `Writer`
keeps, for each value, which storage it may share and whether autograd may have saved that storage; a step that wants to write
asks `writable`, which clones first wherever a write would be refused.

    v3 = v2[:, 1:]         v2 and v3: one storage
    v4 = torch.tanh(v3)    tanh saves its output: the storage of v4 is `saved`
    v3.add_(1.0)           allowed, and v2 changes with it
    v5 = v4.clone()        v4 itself may not be written, ...
    v5.add_(1.0)           ... its clone may
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from partitioner.testing.recipe import INPUT_NAMES, Recipe, Step

MAX_WIDTH = 16  # a cat doubles a width; past this the step takes a slice
IMAGE_SIDE = 4


@dataclass(frozen=True)
class Value:
    """A float tensor that the forward holds in a local name.

    `shape` leaves out the batch. Values with the same `storage` may share memory. A `fixed` value can never be written: it
    overlaps itself, or is one of several views made by one op.
    """

    name: str
    shape: tuple[int, ...]
    storage: int
    fixed: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass
class Writer:
    """The source so far, and what is known of each value in it."""

    recipe: Recipe
    values: list[Value] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    saved: set[int] = field(default_factory=set)
    storages: int = 0

    def __post_init__(self) -> None:
        for index, name in enumerate(INPUT_NAMES[: self.recipe.inputs]):
            side = (IMAGE_SIDE, IMAGE_SIDE) if self.recipe.image and index == 0 else ()
            value = Value(name, (self.recipe.width, *side), self._storage())
            self.values.append(value)
            if name != "state":  # a leaf that requires a gradient may not be written
                self.saved.add(value.storage)

    # -- which value -------------------------------------------------------------------------------------------------

    def pick(self, number: int, fits: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """The value `number` places back from the newest one that fits, or None when none does."""
        fitting = [value for value in reversed(self.values) if fits(value)]
        return fitting[number % len(fitting)] if fitting else None

    def any(self, number: int) -> Value:
        """A value of any shape."""
        value = self.pick(number)
        assert value is not None, "a recipe has at least one input"
        return value

    def like(self, other: Value, number: int) -> Value:
        """A value of the same shape: another one where there is one."""
        found = self.pick(number, lambda value: value.shape == other.shape and value != other)
        return found or other

    def wide(self, number: int) -> Value:
        """A value at least two wide, so that it can be cut; an input always is."""
        value = self.pick(number, lambda value: value.shape[0] >= 2)
        assert value is not None, "every input is at least two wide"
        return value

    def vector(self, number: int) -> Value:
        """A (batch, features) value; the mean over an image where there is none."""
        found = self.pick(number, lambda value: len(value.shape) == 1)
        if found is not None:
            return found
        image = self.any(number)
        return self.new(f"{image}.mean((2, 3))", image.shape[:1])

    def image(self, number: int) -> Value:
        """A (batch, channels, 4, 4) value; a vector spread over the pixels where there is none."""
        found = self.pick(number, lambda value: value.shape[1:] == (IMAGE_SIDE, IMAGE_SIDE))
        if found is not None:
            return found
        flat = self.vector(number)
        spread = f"{flat}[:, :, None, None].expand(-1, -1, {IMAGE_SIDE}, {IMAGE_SIDE})"
        return self.view(spread, flat, (*flat.shape, IMAGE_SIDE, IMAGE_SIDE), fixed=True)

    # -- what is written ---------------------------------------------------------------------------------------------

    def do(self, line: str) -> None:
        """One statement that names no new value."""
        self.lines.append(line)

    def new(self, expression: str, shape: tuple[int, ...]) -> Value:
        """A new name for a tensor with memory of its own."""
        value = Value(self.name(), shape, self._storage())
        return self._bind(value, expression)

    def view(self, expression: str, of: Value, shape: tuple[int, ...], *, fixed: bool = False) -> Value:
        """A new name for memory that `of` has already, or may have."""
        value = Value(self.name(), shape, of.storage, fixed or of.fixed)
        return self._bind(value, expression)

    def several(self, expression: str, *values: Value) -> None:
        """Binds the outputs of an op that returns several tensors."""
        self.do(f"{', '.join(value.name for value in values)} = {expression}")
        self.values.extend(values)

    def name(self, offset: int = 0) -> str:
        """The next free local name, or one further on."""
        return f"v{len(self.values) + offset}"

    def attribute(self, name: str, expression: str) -> str:
        """`self.name`, made in `__init__` from `expression` when it is first asked for."""
        self.attributes.setdefault(name, expression)
        return f"self.{name}"

    # -- what autograd allows ----------------------------------------------------------------------------------------

    def saves(self, *values: Value) -> None:
        """Autograd may hold these until backward, so their memory is never written again."""
        self.saved.update(value.storage for value in values)

    def writable(self, value: Value) -> Value:
        """The value itself where autograd lets it be written, otherwise a clone of it."""
        if value.fixed or value.storage in self.saved:
            return self.new(f"{value}.clone()", value.shape)
        return value

    def apart(self, value: Value, target: Value) -> str:
        """`value` as the source of a write to `target`: torch refuses operands that overlap in part."""
        return f"{value}.clone()" if value.storage == target.storage else value.name

    def _bind(self, value: Value, expression: str) -> Value:
        self.do(f"{value} = {expression}")
        self.values.append(value)
        return value

    def _storage(self) -> int:
        self.storages += 1
        return self.storages


# -- kinds of step -----------------------------------------------------------------------------------------------------

REGISTRY: dict[str, Callable[[Writer, Step], None]] = {}
"""The kinds of step, by name: each writes its lines."""


def kind(*operands: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a kind of step under the function's name. It is given the writer, the step's `choice` and its operands.

    Args:
        operands: how each is picked: by which method of the writer, and whether it is to be written, as in ``"writable any"``.
            ``"like"`` has the shape of the first.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        def write(w: Writer, step: Step) -> None:
            picked: list[Value] = []
            for how, number in zip(operands, step.picks, strict=False):
                pick = getattr(w, how.removeprefix("writable "))
                value = pick(picked[0], number) if how == "like" else pick(number)
                picked.append(w.writable(value) if how.startswith("writable ") else value)
            function(w, step.choice, *picked)

        REGISTRY[function.__name__] = write
        return function

    return register


def spelled(
    name: str, operands: str, *forms: str, result: str = "new", holds: tuple[str, str] | None = None, saves: str = ""
) -> None:
    """Registers a kind of step that is one line, in as many spellings as there are forms; a step's `choice` picks one.

    Args:
        name: of the kind.
        operands: how they are picked, as for `kind`, with commas between them.
        forms: the line, over ``a`` and ``b``, the operands; ``n``, the width of ``a``; ``held``; and ``source``, which is ``b``
            where ``a`` is written.
        result: whether the line gives a ``new`` tensor of the shape of ``a`` or may give a ``view`` of it; ``none``: it writes.
        holds: name and value of what the module holds for it, over ``n``, the number of a ``slot`` and ``dims``.
        saves: what autograd may save: ``a``, ``b``, ``result``.
    """

    def write(w: Writer, choice: int, a: Value, b: Value | None = None) -> None:
        words = {"a": a, "b": b, "n": a.shape[0], "slot": choice % 2, "dims": "2d" if len(a.shape) == 3 else "1d"}
        words["source"] = b and w.apart(b, a)
        if holds is not None:
            words["held"] = w.attribute(*(text.format(**words) for text in holds))
        line = forms[choice % len(forms)].format(**words)
        if result == "none":
            w.do(line)
        else:
            words["result"] = w.new(line, a.shape) if result == "new" else w.view(line, a, a.shape)
        w.saves(*(value for each in saves.split() if isinstance(value := words[each], Value)))

    write.__name__ = name
    kind(*operands.split(", "))(write)
