"""The kinds of step that call a module or use a parameter: shared, tied, nested, and with state of their own."""

from __future__ import annotations

from partitioner.testing.writer import MAX_WIDTH, Value, Writer, kind, spelled


def _linear(w: Writer, a: Value, slot: int) -> str:
    """The layer of this slot and width. Few slots, so a recipe often calls one layer twice."""
    return w.attribute(f"linear_{a.shape[0]}_{slot % 2}", f"nn.Linear({a.shape[0]}, {w.recipe.width})")


@kind("vector")
def linear(w: Writer, choice: int, a: Value) -> None:
    """A layer; `choice` says which, so a recipe often calls one twice."""
    w.saves(a)
    w.new(f"{_linear(w, a, choice)}({a})", (w.recipe.width,))


@kind("vector")
def shared(w: Writer, choice: int, a: Value) -> None:
    """One layer called in two branches: its gradient is a sum over both."""
    layer = _linear(w, a, choice)
    w.saves(a)
    first = w.new(f"{layer}({a})", (w.recipe.width,))
    second = w.new(f"{layer}({a} * 0.5)", (w.recipe.width,))
    w.new(f"{first} + torch.tanh({second})", first.shape)


@kind("vector")
def tied(w: Writer, choice: int, a: Value) -> None:
    """A second layer with the first one's weight, or the weight used directly."""
    layer = _linear(w, a, choice)
    w.saves(a)
    if choice % 4 < 2:
        w.new(f"F.linear({a}, {layer}.weight)", (w.recipe.width,))
        return
    name = f"tied_{a.shape[0]}_{choice % 2}"
    module = w.attribute(name, f"nn.Linear({a.shape[0]}, {w.recipe.width})")
    w.attribute(f"{name}.weight", f"{layer}.weight")
    w.new(f"{module}({a})", (w.recipe.width,))


# A parameter of the root itself.
spelled("scale", "any", "{a} * {held}", holds=("scale{slot}", "nn.Parameter(torch.rand(1) + 0.5)"), saves="a")


@kind("image")
def conv(w: Writer, choice: int, a: Value) -> None:
    """A 3x3 convolution that keeps the image's size."""
    channels, width = a.shape[0], w.recipe.width
    module = w.attribute(f"conv_{channels}_{choice % 2}", f"nn.Conv2d({channels}, {width}, 3, padding=1)")
    w.saves(a)
    w.new(f"{module}({a})", (width, *a.shape[1:]))


# Batch norm: in training mode it writes running statistics and a counter, and its op's schema does not say so.
spelled("norm", "any", "{held}({a})", holds=("norm{dims}_{n}_{slot}", "nn.BatchNorm{dims}({n})"), saves="a")

# A norm without running statistics.
spelled("layer_norm", "vector", "{held}({a})", holds=("layer_norm_{n}", "nn.LayerNorm({n})"), saves="a")


@kind("vector")
def embedding(w: Writer, choice: int, a: Value) -> None:
    """An integer branch: no gradient flows into it, and one flows out of the table."""
    module = w.attribute(f"embedding{choice % 2}", f"nn.Embedding({MAX_WIDTH}, {w.recipe.width})")
    w.new(f"{module}({a}.argmax(1))", (w.recipe.width,))


# A nested module of our own, with an in-place activation and a skip inside.
spelled("block", "vector", "{held}({a})", holds=("block_{n}_{slot}", "Block({n})"), saves="a")

# torch's own containers, nested: two layers, an in-place activation and dropout.
_LAYERS = "nn.Sequential(nn.Linear({n}, {n}), nn.ReLU(inplace=True), nn.Dropout(0.25), nn.Linear({n}, {n}))"
spelled("sequential", "vector", "{held}({a})", holds=("sequential_{n}", _LAYERS), saves="a")

# A nested module that keeps a running mean of what passed through it.
spelled("recorder", "any", "{held}({a})", holds=("recorder{slot}", "Recorder()"))
