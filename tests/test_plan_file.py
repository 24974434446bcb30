"""Plans as files: written, read back, applied elsewhere, compared. What does not fit is refused by its first difference."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lanes
import pretend
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import assert_same, numbers, spec
from torch import Tensor, nn
from typer.testing import CliRunner, Result

from partitioner import PartitionerError, PlacementError, SpecError, partition, save_plan
from partitioner.cli import main as cli
from partitioner.driver import planned
from partitioner.ir.plan import Plan, state_devices
from partitioner.ir.saved import SavedPlan
from partitioner.ir.saving import saved
from partitioner.lower.planfile import read_plan, write_plan
from partitioner.planner.replay import Replayed
from partitioner.testing import GeneratedModule, build, recipes


class Towers(nn.Module):
    """Two towers, of which one writes in place, a buffer that forward writes, and a join."""

    def __init__(self, width: int = 4, activation: str = "relu_", scale: float = 1.0) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, width), nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.activation, self.scale = activation, scale

    def forward(self, x: Tensor) -> Tensor:
        """Adds up what both give."""
        left = getattr(torch, self.activation)(self.left(x)) if self.activation else self.left(x)
        return self.norm(left * self.scale) + torch.sigmoid(self.right(x))


class Longer(Towers):
    """The towers, and an op more."""

    def forward(self, x: Tensor) -> Tensor:
        """Negates the sum."""
        return torch.neg(super().forward(x))


X = numbers(2, 4)


def made(model: nn.Module | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    return partition(model or Towers(), example_inputs=X, **({"spec": spec(2), "policy": "list"} | options))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the plan of the towers."""
    save_plan(made(), tmp_path / "plan.json")
    return tmp_path / "plan.json"


def edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """The file, changed by hand."""
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    return path


# Writing and reading --------------------------------------------------------------------------------------------------


def test_what_is_read_is_what_was_written(path: Path) -> None:
    document = read_plan(path)
    assert document.text() == path.read_text() and document.model == "Towers" and len(document.programs) == 1
    assert document.machine() == made().plan.machine
    (program,) = document.programs
    plan = made().plan
    assert program.makespan == plan.makespan and program.bound == plan.placement.bound
    assert [row.ops for row in program.tasks] == [plan.tasks.tasks[task].ops for task in plan.placement.order]
    assert [row.lane for row in program.tasks] == [
        plan.machine.lanes[plan.placement.lanes[t]].name for t in plan.placement.order
    ]
    assert any(op.after for op in program.ops) == any(kind != "data" for kind in plan.graph.edges.values())


def test_a_plan_is_one_line_an_op_and_one_line_a_task(path: Path) -> None:
    lines = path.read_text().splitlines()
    (program,) = read_plan(path).programs
    for name in (*(op.name for op in program.ops), *(task.name for task in program.tasks)):
        assert sum(line.lstrip().startswith(f'{{"name": "{name}", ') for line in lines) == 1


def test_another_process_writes_the_same_bytes(path: Path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_plan_file import made, save_plan
save_plan(made(), {str(path.with_name("again.json"))!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert path.with_name("again.json").read_bytes() == path.read_bytes()


def test_links_of_a_large_machine_take_a_line_for_each_device(tmp_path: Path) -> None:
    plan = planned(Towers(), [f"cuda:{n}" for n in range(16)], example_inputs=X)
    document = write_plan(plan, tmp_path / "plan.json")
    assert len(document.links) == 16 and read_plan(tmp_path / "plan.json").machine() == plan.machine


def test_links_and_pipes_are_written_to(path: Path, tmp_path: Path) -> None:
    """``--save-plan /dev/full`` put a file in the place of the device."""
    elsewhere, link, pipe = tmp_path / "elsewhere.json", tmp_path / "link.json", tmp_path / "pipe"
    elsewhere.write_text("old")
    link.symlink_to(elsewhere)
    save_plan(made(), link)
    assert link.is_symlink() and elsewhere.read_text() == path.read_text()
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    save_plan(made(), pipe)
    assert reader.communicate(timeout=30)[0] == path.read_text() and pipe.is_fifo()


def test_what_is_no_plan_yet_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="takes what partition"):
        save_plan(Towers(), tmp_path / "plan.json")
    with pytest.raises(SpecError, match=r"provisional.*give an example"):
        save_plan(partition(Towers(), ["cpu"]), tmp_path / "plan.json")
    plans = [planned(Towers(), devices, example_inputs=X) for devices in (["cpu:0"], ["cpu:0", "cpu:1"])]
    with pytest.raises(SpecError, match="different machines"):
        write_plan(plans, tmp_path / "plan.json")
    with pytest.raises(SpecError, match="no plan to save"):
        write_plan([], tmp_path / "plan.json")
    with pytest.raises(SpecError, match="cannot be written"):
        save_plan(made(), tmp_path / "none" / "plan.json")
    assert not list(tmp_path.iterdir())


# Applying -------------------------------------------------------------------------------------------------------------


def same_plan(one: Plan, other: Plan) -> bool:
    """Whether two plans agree in tasks, lanes, order, threads and program."""
    mine, theirs = one.placement, other.placement
    return (
        [task.ops for task in one.tasks.tasks] == [task.ops for task in other.tasks.tasks]
        and list(mine.lanes) == list(theirs.lanes)
        and list(mine.order) == list(theirs.order)
        and list(mine.threads or [0] * len(mine.lanes)) == list(theirs.threads or [0] * len(theirs.lanes))
        and str(one.program) == str(other.program)
    )


def test_a_saved_plan_is_applied_as_it_was(path: Path) -> None:
    first, model = made(), Towers().eval()
    again = partition(Towers(), example_inputs=X, plan=path)
    assert same_plan(first.plan, again.plan) and again.plan.machine == first.plan.machine
    assert again.plan.makespan == first.plan.makespan and 0 < again.placement.bound <= again.placement.cost
    later = partition(Towers(), plan=path)  # without examples: at the first call
    later.load_state_dict(model.state_dict())
    with pytest.raises(SpecError, match=r"another Towers.*norm"):
        later.eval()(X)  # in evaluation there are other ops
    model.train(), later.train()
    assert_same(model(X), later(X))
    assert same_plan(first.plan, later.plan)


@settings(max_examples=10)
@given(recipes(max_steps=6))
def test_plans_of_any_model_are_applied_as_they_were(recipe: Any) -> None:
    model: GeneratedModule = build(recipe)
    inputs = model.example_inputs(seed=0)
    try:
        first = planned(model, example_inputs=inputs, spec=spec(3), policy="list", check=False)
    except PartitionerError:
        return  # a model that cannot be traced has no plan
    if not first.graph.observed or not first.graph.ops:
        return
    document = SavedPlan.model_validate_json(saved([first]).text())
    assert document == saved([first])
    asked: Any = spec(3) | {"policy": Replayed(document)}
    again = planned(build(recipe), example_inputs=inputs, spec=asked, check=False)
    assert same_plan(first, again)
    assert saved([again]).programs[0].fingerprint == document.programs[0].fingerprint


def test_the_file_decides(path: Path) -> None:
    """Not the policy that wrote it: tasks go to the lanes that somebody wrote into the file, in that order."""

    def swap(document: dict[str, Any]) -> None:
        for task in document["programs"][0]["tasks"]:
            task["lane"] = {"cpu/0": "cpu/1", "cpu/1": "cpu/0"}[task["lane"]]
            task["reason"] = "by hand"

    before = {row.ops: row.lane for row in read_plan(path).programs[0].tasks}
    plan = partition(Towers(), example_inputs=X, plan=edited(path, swap)).plan
    after = {task.ops: plan.machine.lanes[plan.placement.lane[task.name]].name for task in plan.tasks.tasks}
    assert set(before.values()) == {"cpu/0", "cpu/1"} and all(after[ops] != lane for ops, lane in before.items())
    assert set(plan.placement.reason.values()) == {"by hand"}


def test_ops_of_a_task_may_be_written_in_any_order(path: Path) -> None:
    """The graph says in which they run; a task that listed them otherwise was none of "these tasks"."""
    for row in (document := json.loads(path.read_text()))["programs"][0]["tasks"]:
        row["ops"].reverse()
    assert max(len(row["ops"]) for row in document["programs"][0]["tasks"]) > 1
    path.write_text(json.dumps(document))
    assert same_plan(made().plan, partition(Towers(), example_inputs=X, plan=path).plan)


def test_all_programs_of_a_module_are_in_one_file(tmp_path: Path) -> None:
    parallel = made()
    parallel(numbers(3, 4)), parallel.eval(), parallel(X)
    save_plan(parallel, tmp_path / "plan.json")
    document = read_plan(tmp_path / "plan.json")
    assert len(document.programs) == 3 and "float32[2, 4]" in document.programs[0].inputs.values()
    again, model = partition(Towers(), plan=tmp_path / "plan.json"), Towers()
    again.load_state_dict(model.state_dict())
    for training, batch in ((True, 2), (True, 3), (True, 5), (False, 2)):  # batches of 3 and 5 are one program
        model.train(training), again.train(training)
        assert_same(model(numbers(batch, 4)), again(numbers(batch, 4)))
    assert {piece.plan.placement.policy for piece in again._partitioner_programs.pieces} == {"list"}


def gpus(*names: str, lanes: int = 1) -> dict[str, Any]:
    return {"devices": [{"name": name, "device": f"cuda:{n}", "lanes": lanes} for n, name in enumerate(names)], "grain": 1e-9}


def test_state_goes_where_the_plan_of_several_devices_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """On accelerators that are pretended; the graph is traced twice, before state is moved and after it."""
    model, x = lanes.Towers(), numbers(4, 6)
    expected = model(x).detach()
    with pretend.pretending(monkeypatch) as world:
        machine = pretend.spec({"lazy:0": 2, "lazy:1": 1})
        first = partition(model, example_inputs=x, spec=machine, copy=True)
        assert_same(expected, first(x).detach())
        save_plan(first, tmp_path / "plan.json")
        again = partition(model, example_inputs=x, plan=tmp_path / "plan.json", copy=True)
        assert_same(expected, again(x).detach())
        assert {str(each.device) for each in again.parameters()} == {"lazy:0", "lazy:1"}
        assert state_devices(first.plan) == state_devices(again.plan) and same_plan(first.plan, again.plan)
        assert world.faults() == []


def test_a_plan_with_python_between_graphs_says_which_option_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very model was said to be another one, and `landed`, which no model has, to be the difference."""
    path, x = tmp_path / "plan.json", numbers(4, 6)
    with pretend.pretending(monkeypatch):
        for made, asked, words in ((False, None, "with full.*give full"), (None, False, "without full.*leave out full")):
            options: Any = {"example_inputs": x, "copy": True}
            save_plan(pretend.spread(lanes.Towers(), (x,), pretend.TWO, copy=True, fullgraph=made), path)
            with pytest.raises(SpecError, match=f"it was made {words}graph=False.$"):
                partition(lanes.Towers(), plan=path, fullgraph=asked, **options)
            assert partition(lanes.Towers(), plan=path, fullgraph=made, **options).plan.graph.ops


PINS = [{"match": "left*", "device": "a"}, {"match": "right*", "device": "b"}]


def test_devices_are_found_by_name_or_else_by_position() -> None:
    model = Towers()
    first = planned(model, example_inputs=X, spec=gpus("a", "b") | {"pins": PINS}, policy="list")
    document = saved([first])

    def homes(*names: str) -> dict[str, str]:
        asked: Any = gpus(*names) | {"policy": Replayed(document)}
        plan = planned(model, example_inputs=X, spec=asked)
        lanes = plan.machine.lanes
        return {op: lanes[plan.placement.lane[plan.tasks.task_of[op]]].device_name for op in ("left_linear", "right_linear")}

    assert homes("a", "b") == {"left_linear": "a", "right_linear": "b"}
    assert homes("b", "a") == {"left_linear": "a", "right_linear": "b"}
    assert homes("x", "y") == {"left_linear": "x", "right_linear": "y"}


# Refusing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (spec(3), "cpu with 2 lanes.*cpu with 3 lanes"),
        (gpus("a", lanes=2), r"cpu with 2 lanes.*cuda with 2 lanes"),
        (gpus("a", "b"), "made for 1 devices, and there are 2 here: a, b"),
    ],
)
def test_a_machine_of_another_shape_is_refused(path: Path, machine: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        planned(Towers(), example_inputs=X, spec=machine | {"policy": Replayed(read_plan(path), "plan.json")})


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Towers(width=8), r"state left\.bias is float32\[4\] in the plan and float32\[8\] here"),
        (Towers().double(), r"state left\.bias is float32\[4\] in the plan and float64\[4\] here"),
        (Towers(activation=""), r"op left = relu_\(left_linear\) is only in the plan"),
        (Longer(), r"op neg = neg\(add\) is only here"),
        (Towers(activation="relu"), r"op left is relu_\(left_linear\) in the plan and relu\(left_linear\) here"),
        (Towers(scale=2.0), r"op mul is mul\(left, 1\.0\) in the plan and mul\(left, 2\.0\) here"),
        (nn.Linear(4, 4), r"state .* is only"),
        (Towers().eval(), r"or for other calls or modes of it\. The first .*, or make such a call before save_plan"),
    ],
    ids=["shape", "dtype", "op missing", "op more", "other op", "other constant", "other model", "other mode"],
)
def test_a_model_that_has_changed_is_refused_with_the_first_difference(path: Path, model: nn.Module, words: str) -> None:
    inputs = X.double() if next(model.parameters()).dtype is torch.float64 else X
    with pytest.raises(SpecError, match=words) as caught:
        partition(model, example_inputs=inputs, plan=path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_call_of_another_shape_says_what_to_do(path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"no plan of this call of Towers.*input x is float32\[2, 4\].*float32\[5, 4\].*save_plan"
    ):
        partition(Towers(), example_inputs=numbers(5, 4), plan=path)


@pytest.mark.parametrize("more", [{"policy": "list"}, {"tune": True}, {"pins": PINS}, {"grain": "1ms"}])
def test_only_one_decides(path: Path, more: Any) -> None:
    with pytest.raises(SpecError, match=f"plan= decides.*{next(iter(more))}="):
        partition(Towers(), example_inputs=X, plan=path, **more)


def test_an_order_that_breaks_an_edge_is_refused(path: Path) -> None:
    broken = edited(path, lambda document: document["programs"][0]["tasks"].reverse())
    with pytest.raises(PlacementError, match=r"is issued before .*, which it waits for"):
        partition(Towers(), example_inputs=X, plan=broken)


def test_tasks_that_would_wait_for_each_other_are_refused(path: Path) -> None:
    def join(document: dict[str, Any]) -> None:
        program = document["programs"][0]
        ops = [op["name"] for op in program["ops"]]
        first = program["tasks"][0]
        rest = {**first, "name": "rest", "ops": ops[1:-1]}
        program["tasks"] = [{**first, "ops": [ops[0], ops[-1]]}, rest]

    with pytest.raises(SpecError, match=r"cannot be run one by one.*not convex"):
        partition(Towers(), example_inputs=X, plan=edited(path, join))


class Tied(nn.Module):
    """Two ops of one weight, which share a device."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Adds up what the layer gives for both."""
        return self.layer(x) + self.layer(y)


def test_state_that_would_be_in_two_places_is_refused() -> None:
    first = planned(Tied(), example_inputs=(X, X.clone()), spec=gpus("a", "b"), policy="list")
    document = json.loads(saved([first]).text())
    rows = document["programs"][0]["tasks"]
    for number, row in enumerate(rows):
        row["lane"] = "ab"[number % 2] + "/0"
    asked: Any = gpus("a", "b") | {"policy": Replayed(SavedPlan.model_validate(document, strict=False), "plan.json")}
    with pytest.raises(PlacementError, match=r"(?s)plan.json: it cannot be applied here.*several devices"):
        planned(Tied(), example_inputs=(X, X.clone()), spec=asked)


# Files that are wrong -------------------------------------------------------------------------------------------------


def first(document: dict[str, Any], rows: str) -> dict[str, Any]:
    found: dict[str, Any] = document["programs"][0][rows][0]
    return found


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d: d.pop("model"), "model: is missing"),
        (lambda d: d.clear(), r"plan:\n  schema_version: is missing; save_plan and inspect --save-plan write plans$"),
        (lambda d: d.update(schema_version=2), "schema_version: .*less than or equal to 1"),
        (lambda d: d.update(colour="blue"), "colour: is no key here"),
        (lambda d: d["devices"][0].update(lanes="two"), r"devices\.0\.lanes: .*integer"),
        (lambda d: d["devices"][0].update(lanes=0), r"devices\.0\.lanes: .*greater"),
        (lambda d: d["devices"][0].update(flops=float("nan")), r"devices\.0\.flops: .*finite|devices\.0\.flops"),
        (lambda d: d["devices"].append(d["devices"][0]), "device cpu is written twice"),
        (lambda d: d.update(links=[{"source": "cpu", "targets": ["tpu"], "bandwidth": 1.0, "latency": 0.0}]), "names 'tpu'"),
        (lambda d: first(d, "tasks").update(lane="gpu7/0"), "'gpu7/0', which is no lane"),
        (lambda d: first(d, "tasks").update(ops=[]), r"programs\.0\.tasks\.0\.ops: "),
        (lambda d: first(d, "tasks")["ops"].append("nothing"), r"programs\.0: a task holds nothing"),
        (lambda d: d["programs"][0]["tasks"].pop(), r"programs\.0: .* is in no task"),
        (lambda d: d["programs"][0]["tasks"].append(first(d, "tasks")), r"programs\.0: task .* is written twice"),
        (lambda d: first(d, "ops").update(call="conv2d(x)"), r"programs\.0: the fingerprint is not that of"),
        (lambda d: d["programs"][0].update(fingerprint="abc"), r"programs\.0\.fingerprint: "),
        (lambda d: d["programs"].append(d["programs"][0]), "fingerprint .* is written twice"),
    ],
)
def test_a_fault_is_told_by_its_path(path: Path, edit: Callable[[dict[str, Any]], object], words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        read_plan(edited(path, edit))
    assert str(caught.value).startswith(json.dumps(str(path)))


@pytest.mark.parametrize(
    "content",
    [b"", b"[1, 2]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"model": "a", "model": "b"}', b"9" * 5000, b'"\\ud800"', b"null"],
    ids=["empty", "list", "open", "bytes", "deep", "twice", "digits", "surrogate", "null"],
)
def test_what_is_no_document_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(SpecError, match=r"plan.json"):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize("place", ["missing.json", ".", "/dev/zero", "a\0b"])
def test_what_is_no_file_is_refused(place: str) -> None:
    """It said ``[Errno 2]``, and the path twice."""
    says = r"cannot be read as text: [^\[]*; give the path of a file that save_plan wrote$"
    with pytest.raises(SpecError, match=says) as refused:
        read_plan(place)
    assert str(refused.value).count("missing.json") <= 1


TEXT = saved([made().plan]).text()


@given(st.data())
def test_a_damaged_file_is_read_as_a_plan_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any mixture of its own words: nothing but a SpecError, or a document that writes itself again."""
    words = re.findall(r'"[^"]*"|[0-9.e-]+|[^"0-9]', TEXT)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(words) - 1))
        words[at] = data.draw(st.sampled_from(words))
    file = tmp_path_factory.getbasetemp() / "damaged.json"
    file.write_text("".join(words))
    try:
        document = read_plan(file)
    except SpecError:
        return
    assert SavedPlan.model_validate_json(document.text()) == document


# The command line -----------------------------------------------------------------------------------------------------

MODEL = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
example_inputs = torch.ones(8, 64)
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(each) for each in arguments])


def test_diff_tells_what_changed(path: Path, tmp_path: Path) -> None:
    same = run("diff", path, path)
    assert same.exit_code == 0 and same.stdout == "no difference\n"
    save_plan(
        made(policy="single", spec=spec(2) | {"devices": [{"device": "cpu", "lanes": 2, "handoff": "1ms"}]}), tmp_path / "b"
    )
    changed = run("diff", path, tmp_path / "b")
    assert changed.exit_code == 1
    for words in (
        "device cpu: ",
        "handoff 0.0 -> 0.001",
        "tasks moved",
        "cpu/1 -> cpu/0: ",
        "policy: list -> single",
        "makespan: ",
    ):
        assert words in changed.stdout
    save_plan(made(Longer()), tmp_path / "c")
    longer = run("diff", path, tmp_path / "c").stdout
    assert "model: Towers -> Longer" in longer and "op neg = neg(add) is only in the second" in longer
    assert "task" in longer and "is only in the first plan" in longer


def test_diff_tells_every_edit(path: Path) -> None:
    """Of one field at a time: no field of a document changes without a word."""
    before = read_plan(path)
    edits: list[Callable[[dict[str, Any]], object]] = [
        lambda d: d.update(model="Other"),
        lambda d: d["devices"][0].update(cores=9),
        lambda d: first(d, "tasks").update(reason="none"),
        lambda d: first(d, "tasks").update(threads=7),
        lambda d: first(d, "tasks").update(end=1.0),
        lambda d: first(d, "tasks").update(lane="cpu/1" if first(d, "tasks")["lane"] == "cpu/0" else "cpu/0"),
        lambda d: d["programs"][0].update(note="by hand"),
        lambda d: d["programs"][0].update(bound=0.0),
        lambda d: d["programs"][0].update(makespan=1.0),
        lambda d: d["programs"][0]["tasks"].reverse(),
        lambda d: d["programs"].clear(),
    ]
    for number, edit in enumerate(edits):
        other = path.with_name(f"{number}.json")
        other.write_text(before.text())
        found = run("diff", path, edited(other, edit))
        assert found.exit_code == 1 and found.stdout.strip(), number


def test_diff_of_what_is_no_plan_is_an_error(path: Path) -> None:
    found = run("diff", path, path.with_name("none.json"))
    assert found.exit_code == 2 and found.stderr.count("error: ") == 1 and not found.stdout


def test_diff_needs_no_torch(path: Path) -> None:
    code = f"import sys; from partitioner.cli.main import app; sys.argv[1:] = ['diff', {str(path)!r}, {str(path)!r}]\n"
    code += "try: app()\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["no", "difference", "False"]


def test_inspect_saves_the_plan_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    shown = run("inspect", "model.py", "--devices", "cuda:0,cuda:1", "--save-plan", "plan.json")
    assert shown.exit_code == 0 and "Sequential" in shown.stdout
    document = read_plan("plan.json")
    assert document.model == "Sequential" and [each.device for each in document.devices] == ["cuda:0", "cuda:1"]
    assert run("diff", "plan.json", "plan.json").exit_code == 0
