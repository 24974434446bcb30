"""The kinds of step that read: joins, forks, modules, views, random ops. None writes memory that another value can see."""

from __future__ import annotations

from partitioner.testing.writer import IMAGE_SIDE, MAX_WIDTH, Value, Writer, kind, spelled

# -- joins -----------------------------------------------------------------------------------------------------------


# A join, and a skip when its second operand is an old value.
spelled("add", "any, like", "{a} + {b}")

# A product; the sigmoid keeps a long recipe from growing without bound.
spelled("gate", "any, like", "{a} * torch.sigmoid({b})", saves="a")


@kind("any", "like")
def cat(w: Writer, choice: int, a: Value, b: Value) -> None:
    """A join that doubles the width."""
    width = min(MAX_WIDTH, 2 * a.shape[0])
    end = "" if width == 2 * a.shape[0] else f"[:, :{MAX_WIDTH}]"
    w.new(f"torch.cat([{a}, {b}], 1){end}", (width, *a.shape[1:]))


# A join through a new dimension.
spelled("stack", "any, like", "torch.stack([{a}, {b}]).sum(0)")


# -- forks: ops with several outputs ---------------------------------------------------------------------------------


def _cut(w: Writer, expression: str, a: Value, left: int) -> None:
    """Two views from one op: neither may be written, nor their base while they are in use."""
    rest = a.shape[1:]
    w.saves(a)
    first = Value(w.name(), (left, *rest), a.storage, fixed=True)
    second = Value(w.name(1), (a.shape[0] - left, *rest), a.storage, fixed=True)
    w.several(expression, first, second)


@kind("wide")
def chunk(w: Writer, choice: int, a: Value) -> None:
    """Two views from one op."""
    _cut(w, f"{a}.chunk(2, 1)", a, (a.shape[0] + 1) // 2)


@kind("wide")
def split(w: Writer, choice: int, a: Value) -> None:
    """Two views of different widths from one op."""
    left = 1 + choice % (a.shape[0] - 1)
    _cut(w, f"torch.split({a}, [{left}, {a.shape[0] - left}], 1)", a, left)


@kind("any", "like")
def maximum(w: Writer, choice: int, a: Value, b: Value) -> None:
    """Both outputs of `torch.max`: the values in one branch, the indices in another."""
    w.do(f"top, where = torch.max({a}, 1, keepdim=True)")
    w.new(f"{a} - top", a.shape)
    w.new(f"{b}.gather(1, where)", (1, *a.shape[1:]))
    w.saves(b)


@kind("any")
def sort(w: Writer, choice: int, a: Value) -> None:
    """Sorted values in one branch, their order in another."""
    w.do(f"ordered, order = torch.sort({a}, dim=1, stable=True)")
    w.new("ordered + 1.0", a.shape)
    w.new(f"{a} + order", a.shape)


@kind("image")
def pool(w: Writer, choice: int, a: Value) -> None:
    """An image op with two outputs, one of them of integers."""
    w.do(f"pooled, where = F.max_pool2d({a}, 2, return_indices=True)")
    w.new("pooled + where * 0.1", (a.shape[0], IMAGE_SIDE // 2, IMAGE_SIDE // 2))
    w.saves(a)


# -- one to one ------------------------------------------------------------------------------------------------------


# Arithmetic with Python numbers, from either side.
spelled("scalar", "any", "{a} * 0.5", "1.0 - {a}", "-{a}", "{a} / 3 + 1")

# A pointwise function whose backward reads its input or its output.
spelled("activation", "any", "F.relu({a})", "torch.tanh({a})", "F.silu({a})", "F.gelu({a})", saves="a result")

# A tensor that is neither a parameter nor a buffer, so it moves with no `.to` and is in no state_dict.
spelled("constant", "any", "{a} + {held}", holds=("constant{slot}", "torch.rand(1)"))

# Tensors made in the forward, with a shape and a device that a tracer may burn in.
spelled(
    "made",
    "vector",
    "{a} + torch.arange({n}, device={a}.device)",
    "{a} + torch.ones_like({a})",
    "{a} + {a}.new_ones({n})",
    "{a} + torch.zeros({a}.shape, device={a}.device)",
)


@kind("vector", "vector")
def product(w: Writer, choice: int, a: Value, b: Value) -> None:
    """Matrix products through a transposed view: the batch is summed away and comes back."""
    w.do(f"gram = torch.tanh({a}.t() @ {b})")
    w.new(f"{a} @ gram", b.shape)
    w.saves(a, b)


# -- views -----------------------------------------------------------------------------------------------------------


@kind("wide")
def cut(w: Writer, choice: int, a: Value) -> None:
    """A slice: a view."""
    n = a.shape[0]
    text = (f"{a}[:, 1:]", f"{a}[:, :{n - 1}]", f"{a}.narrow(1, 1, {n - 1})", f"{a}[:, 1:]")[choice % 4]
    w.view(text, a, (n - 1, *a.shape[1:]))


@kind("wide")
def view_of_view(w: Writer, choice: int, a: Value) -> None:
    """A view of a view of a view."""
    w.do(f"inner = {a}.unsqueeze(1)[:, :, 1:]")
    w.view("inner.squeeze(1)", a, (a.shape[0] - 1, *a.shape[1:]))


@kind("any")
def expand(w: Writer, choice: int, a: Value) -> None:
    """A view whose elements overlap, so it can be read and never written."""
    sizes = ", ".join(["-1", str(a.shape[0]), *["-1"] * len(a.shape[1:])])
    w.view(f"{a}[:, :1].expand({sizes})", a, a.shape, fixed=a.shape[0] > 1)


@kind("image")
def transpose(w: Writer, choice: int, a: Value) -> None:
    """A view with other strides."""
    w.view(f"{a}.transpose(2, 3)", a, (a.shape[0], a.shape[2], a.shape[1]))


@kind("image")
def flatten(w: Writer, choice: int, a: Value) -> None:
    """A view or a copy, depending on the strides."""
    w.view(f"{a}.flatten(1)[:, :{MAX_WIDTH}]", a, (min(MAX_WIDTH, a.shape[0] * a.shape[1] * a.shape[2]),))


# Ops that return their own input, or a copy, depending on what it is.
_COPIES = ("{a}.contiguous()", "{a}.to(torch.float32)", "{a}.float()", "{a}.expand_as({a})")
spelled("maybe_alias", "any", *_COPIES, result="view")

# The same memory without its gradient.
spelled("detach", "any", "{a}.detach()", result="view")


# -- random ----------------------------------------------------------------------------------------------------------

# Random numbers, drawn in four ways from the generator of the device.
spelled(
    "noise",
    "any",
    "{a} + torch.rand_like({a})",
    "{a} + torch.randn({a}.shape, device={a}.device)",
    "{a} + torch.empty_like({a}).normal_()",
    "{a} + torch.bernoulli(torch.full_like({a}, 0.5))",
)

# Dropout as a function: random in training mode, the input itself in eval mode.
spelled("dropout", "any", "F.dropout({a}, 0.5, training=self.training)", result="view", saves="a result")

# Dropout as a module, which may be called in several branches.
spelled("dropout_module", "any", "{held}({a})", result="view", holds=("dropout{slot}", "nn.Dropout(0.3)"), saves="a result")
