"""Reports: complete, well-formed in their format, and readable in 100 columns."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import nn

from partitioner.model.call import Call
from partitioner.plans import make_plan
from partitioner.report import FORMATS, PIPE, Screen
from partitioner.report.data import VERSION
from partitioner.report.inspect import inspect
from partitioner.report.inspection import Branch, Inspection
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import load_spec


class Towers(nn.Module):
    def __init__(self, towers: int = 3, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Linear(512, 512)
        self.towers = nn.ModuleList(nn.Sequential(*(nn.Linear(512, 512) for _ in range(depth))) for _ in range(towers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return torch.cat([tower(x) for tower in self.towers], dim=1)


def look(devices: list[str], *args: torch.Tensor) -> Inspection:
    spec, model = load_spec(), Towers()
    plan = make_plan(model, Call.of(args, {}) if args else None, build_machine(spec, devices), spec)
    return inspect(plan)


X = torch.zeros(4096, 512)
MEASURED = look(["cuda:0", "cuda:0", "cuda:1"], X)
UNMEASURED = look(["cuda:0", "cuda:1"])
SERIAL = look(["cpu:0"], X)
ALL = [MEASURED, UNMEASURED, SERIAL, MEASURED.only(range(1, 2))]


def named(branch: Branch, path: str, ops: tuple[str, ...] = ()) -> Inspection:
    """The inspection with another path and other ops in one of its branches."""
    changed = replace(branch, path=path, ops=ops or branch.ops)
    depths = tuple(
        replace(depth, branches=tuple(changed if old is branch else old for old in depth.branches)) for depth in MEASURED.depths
    )
    return replace(MEASURED, depths=depths)


FIRST = MEASURED.depths[0].branches[0]

# Tables ---------------------------------------------------------------------------------------------------------------


def test_a_pipe_gets_every_name_and_no_ansi() -> None:
    text = FORMATS["table"](MEASURED, PIPE)
    assert text.isascii() and "\x1b" not in text and text.endswith("\n")
    for branch in MEASURED.branches:
        (line,) = [line for line in text.splitlines() if " ".join(branch.ops) in line]
        assert all(word in line for word in (branch.path or "(root)", *branch.tasks, *branch.lanes))
    assert not any(line != line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("found", ALL)
@pytest.mark.parametrize("colour", [False, True])
def test_a_terminal_of_100_columns_is_enough(found: Inspection, colour: bool) -> None:
    text = FORMATS["table"](found, Screen(100, colour))
    assert ("\x1b[" in text) == colour
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, plain.splitlines())) <= 100
    rows = [line for line in plain.splitlines() if re.match(r"\d+( x\d+)? +\S", line)]
    assert len(rows) == len(found.depths), "each depth begins one line"


def test_what_a_table_says() -> None:
    text = FORMATS["table"](MEASURED, PIPE)
    assert MEASURED.summary.verdict in text
    for part in ("1 x3", "critical path", "bound", "this plan", "headroom", "cuda:0/1", "why there", "torch.compile"):
        assert part in text
    assert "note: Assumed, not measured: flops, bandwidth" in text and "Assumed" not in FORMATS["table"](UNMEASURED, PIPE)
    assert "note: No shapes are known" in FORMATS["table"](UNMEASURED, PIPE)
    assert "this plan" not in FORMATS["table"](UNMEASURED, PIPE)


def test_names_are_never_read_as_markup() -> None:
    text = FORMATS["table"](named(FIRST, "[red]a:smile:\n\x1b[2J"), Screen(100, True))
    assert "[red]a:smile:??[2J" in text


def test_long_names_give_way_and_numbers_stay() -> None:
    found = named(FIRST, "a.very.long.path." * 8, tuple(f"op_{number}" for number in range(200)))
    (row,) = [line for line in FORMATS["table"](found, Screen(100)).splitlines() if line.startswith("0 ")]
    assert len(row) <= 100 and row.count("\u2026") == 2 and "\u2026h.a.very.long.path. " in row
    assert FIRST.lanes[0] in row and FIRST.tasks[0] in row


# JSON -----------------------------------------------------------------------------------------------------------------


def read(document: dict[str, Any]) -> Inspection:
    """The inspection that a document holds, every field of it."""
    return TypeAdapter(Inspection).validate_python({key: value for key, value in document.items() if key != "version"})


@pytest.mark.parametrize("found", ALL)
def test_json_is_complete(found: Inspection) -> None:
    text = FORMATS["json"](found, PIPE)
    document = json.loads(text)
    assert text.isascii() and document["version"] == VERSION
    assert read(document) == found


def test_json_keys() -> None:
    document = json.loads(FORMATS["json"](MEASURED, PIPE))
    assert list(document) == ["version", "summary", "depths", "edges"]
    assert list(document["depths"][0]) == ["depth", "width", "branches"]
    assert {"ops", "path", "parameters", "flops", "seconds", "lanes", "tasks", "reasons"} <= set(
        document["depths"][0]["branches"][0]
    )


# Graphs ---------------------------------------------------------------------------------------------------------------

STRING = r'"(?:[^"\\]|\\.)*"'
ATTRIBUTES = rf"\[\w+=(?:{STRING}|\w+)(?:, \w+=(?:{STRING}|\w+))*\]"
DOT_LINE = re.compile(
    rf"digraph {STRING} {{|}}|  node {ATTRIBUTES};|  b\d+ {ATTRIBUTES};|  b\d+ -> b\d+(?: {ATTRIBUTES})?;"
    r"|  { rank=same; (?:b\d+; )+}  // depth \d+"
)
MERMAID_LINE = re.compile(
    r'flowchart TD|  b\d+\("[^"]*"\)|  b\d+ (?:-->|-\.->) b\d+'
    r"|  classDef lane\d+ fill:#[0-9a-f]{6},stroke:#666,color:#000|  class b\d+(?:,b\d+)* lane\d+"
)


def check_dot(text: str, found: Inspection) -> None:
    for line in text.splitlines():
        assert DOT_LINE.fullmatch(line), line
    declared = re.findall(r"^  (b\d+) \[label", text, re.MULTILINE)
    assert declared == [branch.name for branch in found.branches]
    assert re.findall(r"^  (b\d+) -> (b\d+)", text, re.MULTILINE) == [(edge.source, edge.target) for edge in found.edges]


def check_mermaid(text: str, found: Inspection) -> None:
    for line in text.splitlines():
        assert MERMAID_LINE.fullmatch(line), line
    assert re.findall(r'^  (b\d+)\("', text, re.MULTILINE) == [branch.name for branch in found.branches]
    assert re.findall(r"^  (b\d+) -", text, re.MULTILINE) == [edge.source for edge in found.edges]
    classed = [name for names in re.findall(r"^  class (\S+)", text, re.MULTILINE) for name in names.split(",")]
    assert sorted(classed) == sorted(branch.name for branch in found.branches)


@pytest.mark.parametrize("found", ALL)
def test_graphs_are_well_formed(found: Inspection) -> None:
    check_dot(FORMATS["dot"](found, PIPE), found)
    check_mermaid(FORMATS["mermaid"](found, PIPE), found)


def test_lanes_have_colours_of_their_own() -> None:
    text = FORMATS["dot"](MEASURED, PIPE)
    fills = {branch.name: re.search(rf'  {branch.name} .*fillcolor="(\S+)"', text) for branch in MEASURED.branches}
    colours = {(branch.lanes, found[1]) for branch in MEASURED.branches if (found := fills[branch.name])}
    assert len(colours) == len({branch.lanes for branch in MEASURED.branches}) == len({colour for _, colour in colours}) > 1


def test_hazards_are_dashed() -> None:
    found = replace(MEASURED, edges=(replace(MEASURED.edges[0], kind="hazard"), *MEASURED.edges[1:]))
    assert "style=dashed" in FORMATS["dot"](found, PIPE)
    assert "-.->" in FORMATS["mermaid"](found, PIPE)


@given(st.text(), st.lists(st.text(), min_size=1, max_size=3).map(tuple))
def test_any_name_is_escaped(path: str, ops: tuple[str, ...]) -> None:
    # What Python calls the end of a line, such as U+2028, is an ordinary letter to Graphviz and Mermaid.
    clean = str.maketrans(dict.fromkeys("\v\f\r\x1c\x1d\x1e\x85\u2028\u2029", " "))
    found = named(FIRST, path.translate(clean), tuple(op.translate(clean) for op in ops))
    check_dot(FORMATS["dot"](found, PIPE), found)
    check_mermaid(FORMATS["mermaid"](found, PIPE), found)
    assert read(json.loads(FORMATS["json"](found, PIPE))) == found
    assert FORMATS["table"](found, PIPE) and FORMATS["table"](found, Screen(100, True))
