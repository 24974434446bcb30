"""The kinds of step that write in place: values, views, aliases, buffers.

Each writes only what `Writer.writable` allows, so eager's own backward stays valid. Sources of buffer updates are detached: a
buffer that carried a gradient would keep the graph of the last call alive.
"""

from __future__ import annotations

from partitioner.testing.writer import Value, Writer, kind, spelled

# An in-place sum.
spelled("add_", "writable any, like", "{a}.add_({source})", "{a}.add_(1.0)", result="none")

# `+=`: a write that every other name of the memory must see. An fx Proxy makes a plain sum of it.
spelled("iadd", "writable any, like", "{a} += {source}", result="none")

# An in-place product.
spelled("mul_", "writable any, like", "{a}.mul_(torch.sigmoid({b}))", "{a}.mul_(0.5)", result="none")

# An in-place activation, spelled in three ways.
_RELUS = ("{a}.relu_()", "F.relu({a}, inplace=True)", "torch.relu_({a})")
spelled("relu_", "writable any", *_RELUS, result="none", saves="a")

# One in-place activation module, called wherever a recipe asks for it.
spelled("relu_module", "writable any", "{held}({a})", result="none", holds=("relu", "nn.ReLU(inplace=True)"), saves="a")

# Overwritten by another value, whose gradient it then carries.
spelled("copy_", "writable any, like", "{a}.copy_({source})", result="none")


@kind("writable wide", "like")
def setitem(w: Writer, choice: int, a: Value, b: Value) -> None:
    """Item assignment, spelled as the call: fx refuses the statement `v[i] = u` on a Proxy, and traces this."""
    source = w.apart(b, a)
    w.do(f"{a}.__setitem__((slice(None), slice(0, 1)), {source}[:, 1:2])")


# A masked write; the mask reads what is about to be written.
spelled("masked_fill_", "writable any", "{a}.masked_fill_({a}.detach() > 1.0, 0.5)", result="none")


@kind("writable wide")
def view_write(w: Writer, choice: int, a: Value) -> None:
    """Written through a view, read through its base."""
    part = w.view(f"{a}[:, 1:]", a, (a.shape[0] - 1, *a.shape[1:]))
    w.do(f"{part}.mul_(0.5)")
    w.new(f"{a} + 1.0", a.shape)


@kind("writable wide")
def view_read(w: Writer, choice: int, a: Value) -> None:
    """Written through one view of a view, read through another that overlaps it."""
    n, rest = a.shape[0], a.shape[1:]
    low = w.view(f"{a}[:, :{n - 1}]", a, (n - 1, *rest))
    high = w.view(f"{a}[:, 1:]", a, (n - 1, *rest))
    w.do(f"{low}[:, :].add_(1.0)")
    w.new(f"{high} * 2.0", high.shape)


@kind("writable vector")
def transposed_write(w: Writer, choice: int, a: Value) -> None:
    """Written through a row of a transposed view, read through the base."""
    w.do(f"{a}.t()[0].add_(1.0)")
    w.new(f"{a} - 0.5", a.shape)


@kind("any")
def fork_write(w: Writer, choice: int, a: Value) -> None:
    """An in-place activation in one branch after a fork: the other branch must have read before it."""
    trunk = w.new(f"{a} - 0.25", a.shape)
    left = w.new(f"{trunk} * 2.0", a.shape)
    right = w.view(f"F.relu({trunk}, inplace=True)", trunk, a.shape)
    w.saves(trunk)
    w.new(f"{left} + {right}", a.shape)


@kind("writable any")
def overwrite(w: Writer, choice: int, a: Value) -> None:
    """Read, overwrite, read: a write that must wait for a reader, and a reader that must wait for the write."""
    before = w.new(f"{a} * 0.5", a.shape)
    w.do(f"{a}.zero_()" if choice % 2 else f"{a}.fill_(0.25)")
    w.new(f"{before} + {a}", a.shape)


@kind("writable any")
def detach_write(w: Writer, choice: int, a: Value) -> None:
    """Written through an alias that autograd does not follow."""
    w.do(f"{a}.detach().mul_(0.5)")
    w.new(f"{a} + 1.0", a.shape)


@kind("writable wide")
def chunk_read(w: Writer, choice: int, a: Value) -> None:
    """Two views from one op, then a write to their base, then a read of the views."""
    w.do(f"low, high = {a}.detach().chunk(2, 1)")
    w.do(f"{a}.add_(1.0)")
    w.new("low[:, :1] + high[:, :1]", (1, *a.shape[1:]))


@kind("any", "like")
def out(w: Writer, choice: int, a: Value, b: Value) -> None:
    """`out=`: the result is written to memory that existed before. Autograd takes no part in it."""
    target = w.new(f"torch.empty_like({a}.detach())", a.shape)
    w.do(f"torch.add({a}.detach(), {b}.detach(), out={target})")
    w.new(f"{b} + {target}", a.shape)


@kind("wide", "like")
def scratch(w: Writer, choice: int, a: Value, b: Value) -> None:
    """A result assembled in parts: two writes to one tensor that do not overlap."""
    target = w.new(f"torch.zeros_like({a})", a.shape)
    w.do(f"{target}[:, :1].copy_({a}[:, :1])")
    w.do(f"{target}[:, 1:].add_({b}[:, 1:])")


# -- buffers ---------------------------------------------------------------------------------------------------------


def _buffer(w: Writer, name: str, tensor: str) -> str:
    return w.attribute(name, f"nn.Buffer({tensor})")


@kind("any")
def counter(w: Writer, choice: int, a: Value) -> None:
    """A count of calls. Plain `symbolic_trace` runs this line once, while it traces, and loses it."""
    count = _buffer(w, "count", "torch.zeros((), dtype=torch.int64)")
    w.do(f"{count}.add_(1)")
    w.new(f"{a} + {count} * 0.1", a.shape)


@kind("any")
def average(w: Writer, choice: int, a: Value) -> None:
    """A running mean, kept in three ways."""
    mean = _buffer(w, f"average{choice % 2}", "torch.zeros(1)")
    updates = (
        f"{mean}.lerp_({a}.detach().mean(), 0.1)",
        f"{mean}.copy_({mean} * 0.9 + {a}.detach().mean() * 0.1)",
        f"{mean}.mul_(0.9).add_({a}.detach().mean())",
    )
    w.do(updates[choice % 3])


# Reads the buffer that `average` writes, before or after it.
spelled("average_read", "any", "{a} + {held}", holds=("average{slot}", "nn.Buffer(torch.zeros(1))"))


@kind("any")
def history(w: Writer, choice: int, a: Value) -> None:
    """A buffer written through a view and read whole, as a cache is."""
    past = _buffer(w, "history", "torch.zeros(4)")
    slot = choice % 4
    w.do(f"{past}[{slot}:{slot + 1}].copy_({a}.detach().mean())")
    w.new(f"{a} + {past}.sum()", a.shape)
