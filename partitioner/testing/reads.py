"""The kinds of step that read: joins, forks, modules, views, random ops. None writes memory that another value can see."""

from __future__ import annotations

from .recipe import Step
from .registry import kind
from .writer import IMAGE_SIDE, MAX_WIDTH, Value, Writer

# -- joins -----------------------------------------------------------------------------------------------------------


@kind
def add(w: Writer, step: Step) -> None:
    """A join, and a skip when its second operand is an old value."""
    a = w.any(step.picks[0])
    b = w.like(a, step.picks[1])
    w.new(f"{a} + {b}", a.shape)


@kind
def gate(w: Writer, step: Step) -> None:
    """A product; the sigmoid keeps a long recipe from growing without bound."""
    a = w.any(step.picks[0])
    b = w.like(a, step.picks[1])
    w.new(f"{a} * torch.sigmoid({b})", a.shape)
    w.saves(a)


@kind
def cat(w: Writer, step: Step) -> None:
    """A join that doubles the width."""
    a = w.any(step.picks[0])
    b = w.like(a, step.picks[1])
    width = min(MAX_WIDTH, 2 * a.shape[0])
    end = "" if width == 2 * a.shape[0] else f"[:, :{MAX_WIDTH}]"
    w.new(f"torch.cat([{a}, {b}], 1){end}", (width, *a.shape[1:]))


@kind
def stack(w: Writer, step: Step) -> None:
    """A join through a new dimension."""
    a = w.any(step.picks[0])
    b = w.like(a, step.picks[1])
    w.new(f"torch.stack([{a}, {b}]).sum(0)", a.shape)


# -- forks: ops with several outputs ---------------------------------------------------------------------------------


def _cut(w: Writer, expression: str, a: Value, left: int) -> None:
    """Two views from one op: neither may be written, nor their base while they are in use."""
    rest = a.shape[1:]
    w.saves(a)
    first = Value(w.name(), (left, *rest), a.storage, fixed=True)
    second = Value(w.name(1), (a.shape[0] - left, *rest), a.storage, fixed=True)
    w.several(expression, first, second)


@kind
def chunk(w: Writer, step: Step) -> None:
    """Two views from one op."""
    a = w.wide(step.picks[0])
    _cut(w, f"{a}.chunk(2, 1)", a, (a.shape[0] + 1) // 2)


@kind
def split(w: Writer, step: Step) -> None:
    """Two views of different widths from one op."""
    a = w.wide(step.picks[0])
    left = 1 + step.choice % (a.shape[0] - 1)
    _cut(w, f"torch.split({a}, [{left}, {a.shape[0] - left}], 1)", a, left)


@kind
def maximum(w: Writer, step: Step) -> None:
    """Both outputs of `torch.max`: the values in one branch, the indices in another."""
    a = w.any(step.picks[0])
    b = w.like(a, step.picks[1])
    w.do(f"top, where = torch.max({a}, 1, keepdim=True)")
    w.new(f"{a} - top", a.shape)
    w.new(f"{b}.gather(1, where)", (1, *a.shape[1:]))
    w.saves(b)


@kind
def sort(w: Writer, step: Step) -> None:
    """Sorted values in one branch, their order in another."""
    a = w.any(step.picks[0])
    w.do(f"ordered, order = torch.sort({a}, dim=1, stable=True)")
    w.new("ordered + 1.0", a.shape)
    w.new(f"{a} + order", a.shape)


@kind
def pool(w: Writer, step: Step) -> None:
    """An image op with two outputs, one of them of integers."""
    a = w.image(step.picks[0])
    w.do(f"pooled, where = F.max_pool2d({a}, 2, return_indices=True)")
    w.new("pooled + where * 0.1", (a.shape[0], IMAGE_SIDE // 2, IMAGE_SIDE // 2))
    w.saves(a)


# -- one to one ------------------------------------------------------------------------------------------------------


@kind
def scalar(w: Writer, step: Step) -> None:
    """Arithmetic with Python numbers, from either side."""
    a = w.any(step.picks[0])
    w.new((f"{a} * 0.5", f"1.0 - {a}", f"-{a}", f"{a} / 3 + 1")[step.choice % 4], a.shape)


@kind
def activation(w: Writer, step: Step) -> None:
    """A pointwise function whose backward reads its input or its output."""
    a = w.any(step.picks[0])
    name = ("F.relu", "torch.tanh", "F.silu", "F.gelu")[step.choice % 4]
    w.saves(a, w.new(f"{name}({a})", a.shape))


@kind
def constant(w: Writer, step: Step) -> None:
    """A tensor that is neither a parameter nor a buffer, so it moves with no `.to` and is in no state_dict."""
    a = w.any(step.picks[0])
    slot = step.choice % 2
    w.new(f"{a} + {w.attribute(f'constant{slot}', 'torch.rand(1)')}", a.shape)


@kind
def made(w: Writer, step: Step) -> None:
    """Tensors made in the forward, with a shape and a device that a tracer may burn in."""
    a = w.vector(step.picks[0])
    n = a.shape[0]
    spellings = (
        f"{a} + torch.arange({n}, device={a}.device)",
        f"{a} + torch.ones_like({a})",
        f"{a} + {a}.new_ones({n})",
        f"{a} + torch.zeros({a}.shape, device={a}.device)",
    )
    w.new(spellings[step.choice % 4], a.shape)


@kind
def product(w: Writer, step: Step) -> None:
    """Matrix products through a transposed view: the batch is summed away and comes back."""
    a = w.vector(step.picks[0])
    b = w.vector(step.picks[1])
    w.do(f"gram = torch.tanh({a}.t() @ {b})")
    w.new(f"{a} @ gram", b.shape)
    w.saves(a, b)


# -- views -----------------------------------------------------------------------------------------------------------


@kind
def cut(w: Writer, step: Step) -> None:
    """A slice: a view."""
    a = w.wide(step.picks[0])
    n = a.shape[0]
    text = (f"{a}[:, 1:]", f"{a}[:, :{n - 1}]", f"{a}.narrow(1, 1, {n - 1})", f"{a}[:, 1:]")[step.choice % 4]
    w.view(text, a, (n - 1, *a.shape[1:]))


@kind
def view_of_view(w: Writer, step: Step) -> None:
    """A view of a view of a view."""
    a = w.wide(step.picks[0])
    w.do(f"inner = {a}.unsqueeze(1)[:, :, 1:]")
    w.view("inner.squeeze(1)", a, (a.shape[0] - 1, *a.shape[1:]))


@kind
def expand(w: Writer, step: Step) -> None:
    """A view whose elements overlap, so it can be read and never written."""
    a = w.any(step.picks[0])
    sizes = ", ".join(["-1", str(a.shape[0]), *["-1"] * len(a.shape[1:])])
    w.view(f"{a}[:, :1].expand({sizes})", a, a.shape, fixed=a.shape[0] > 1)


@kind
def transpose(w: Writer, step: Step) -> None:
    """A view with other strides."""
    a = w.image(step.picks[0])
    w.view(f"{a}.transpose(2, 3)", a, (a.shape[0], a.shape[2], a.shape[1]))


@kind
def flatten(w: Writer, step: Step) -> None:
    """A view or a copy, depending on the strides."""
    a = w.image(step.picks[0])
    w.view(f"{a}.flatten(1)[:, :{MAX_WIDTH}]", a, (min(MAX_WIDTH, a.shape[0] * a.shape[1] * a.shape[2]),))


@kind
def maybe_alias(w: Writer, step: Step) -> None:
    """Ops that return their own input, or a copy, depending on what it is."""
    a = w.any(step.picks[0])
    text = (f"{a}.contiguous()", f"{a}.to(torch.float32)", f"{a}.float()", f"{a}.expand_as({a})")[step.choice % 4]
    w.view(text, a, a.shape)


@kind
def detach(w: Writer, step: Step) -> None:
    """The same memory without its gradient."""
    a = w.any(step.picks[0])
    w.view(f"{a}.detach()", a, a.shape)


# -- random ----------------------------------------------------------------------------------------------------------


@kind
def noise(w: Writer, step: Step) -> None:
    """Random numbers, drawn in four ways from the generator of the device."""
    a = w.any(step.picks[0])
    spellings = (
        f"{a} + torch.rand_like({a})",
        f"{a} + torch.randn({a}.shape, device={a}.device)",
        f"{a} + torch.empty_like({a}).normal_()",
        f"{a} + torch.bernoulli(torch.full_like({a}, 0.5))",
    )
    w.new(spellings[step.choice % 4], a.shape)


@kind
def dropout(w: Writer, step: Step) -> None:
    """Dropout as a function: random in training mode, the input itself in eval mode."""
    a = w.any(step.picks[0])
    result = w.view(f"F.dropout({a}, 0.5, training=self.training)", a, a.shape)  # its own input in eval mode
    w.saves(a, result)


@kind
def dropout_module(w: Writer, step: Step) -> None:
    """Dropout as a module, which may be called in several branches."""
    a = w.any(step.picks[0])
    module = w.attribute(f"dropout{step.choice % 2}", "nn.Dropout(0.3)")
    w.saves(a, w.view(f"{module}({a})", a, a.shape))
