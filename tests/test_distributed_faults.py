"""What goes wrong over ranks: one clear error where it is looked for, and no rank that waits for one that is gone.

What is refused is refused on all ranks at once, said by the first, and the others end without a word. A rank that fails while
it works says so itself; the others name it, and its reason, as far as it could give one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import pytest
import torch
import torch.distributed as dist
from jobs.torchrun import cases, environment, start
from jobs.torchrun import command as started_by

import partitioner.distributed.ranks
from partitioner.distributed import parallelize
from partitioner.distributed.board import ANSWER, PATIENCE
from partitioner.errors import SpecError

JOBS = Path(__file__).parent / "jobs"
PAIR = {"mesh": {"pipeline": 2}}
TIMEOUT = 5.0
"""Seconds, the spec's of fail.py."""

REFUSED = {
    "wrong world size": ("SpecError", "data 1 x pipeline 3.* has 3 ranks, and the job has 2"),
    "does not divide": ("InputError", "a batch of 7 rows does not divide into 2 microbatches"),
    "no tensor": ("InputError", "example_inputs has no tensor"),
    "breaks into pieces": ("TraceError", r"Python decides on the value of a tensor \(at .*refuse_nets.py:\d+\)"),
    "hides a tensor": ("TraceError", "returns a Hidden, which may hold tensors"),
    "returns a weight": ("TraceError", "as it is, which no op of its graph makes"),
    "counts its calls": ("TraceError", "Counted.forward gives calls another value"),
    "writes a global": ("TraceError", "Noting.forward gives .*NOTES.* another value"),
    "replaces a buffer": ("TraceError", r"Averaged.forward gives mean another value.*write it in place"),
    "sizes that depend on data": ("TraceError", r"where gives a tensor whose sizes depend on data \(.*refuse_nets.py:\d+\)"),
    "too many stages": ("PlacementError", "Linear cannot be cut into 2 stages: there are 0 places"),
    "other spec": ("RanksError", r"spec: distributed.microbatches: 2 on rank 0, and 4 on rank 1"),
    "other schedule": ("RanksError", 'spec: distributed.schedule: "1f1b" on rank 0, and "gpipe" on rank 1'),
    "other model": ("RanksError", r"model: Layers of 6 ops, \w+ on rank 0, and Sequential of 3 ops, \w+ on rank 1"),
    "other size": ("RanksError", r"model: Layers of 6 ops, (\w+) on rank 0, and Layers of 6 ops, (?!\1)\w+ on rank 1"),
    "one does not trace": ("RanksError", "rank 1 failed. TraceError: Choosing.forward cannot be one graph"),
    "other rows later": (
        "InputError",
        r"x is torch.float32 of shape \(6, 4\), and .* shape \(8, 4\): 2 microbatches of \(4, 4\)",
    ),
    "fewer columns later": ("InputError", r"x is torch.float32 of shape \(8, 3\)"),
    "other dtype later": ("InputError", "x is torch.float64 .* were made for torch.float32"),
    "other structure later": ("InputError", "another structure than the example inputs"),
    "no pair later": ("InputError", r"a batch is a pair \(inputs, target\); this one is a Tensor"),
    "a target for a loss that takes none": (
        "InputError",
        "loss_fn needs no second argument, so a batch is what the model takes",
    ),
    "a target that is none": ("InputError", "the batch's target is None"),
    "a count of two": ("InputError", "count_fn is called with a microbatch's target, and does not take that: .* 'rows'"),
    "a copied step": ("InputError", r"neither copied nor pickled: copy.deepcopy\(part\) has this rank's values"),
    "a pickled forward": ("InputError", "neither copied nor pickled"),
    "a scaler of a part": ("InputError", "made of a step, as parallelize gives it, and this is a Ranked"),
    "a scaler of another device": ("InputError", "a scaler computes where its step does, on cpu: leave device out"),
    "a scaler that shrinks": ("InputError", "torch's scaler takes no such options: The growth factor"),
    "a scaler of nothing": ("InputError", "init_scale, .* are finite numbers above 0"),
    "scales of ranks' own": ("InputError", "ranks have other scales, from 4 to 8, and the gradients of one model"),
    "three later": ("InputError", "this one is a tuple of 3"),
    "target of a microbatch's rows": ("InputError", r"the target has a tensor of shape \(4, 4\), and the batch 8 rows"),
    "a sparse input": ("InputError", "example_inputs has a sparse_coo tensor, which ranks cannot divide by rows"),
    "a sparse target": ("InputError", "the batch has a sparse_coo tensor"),
    "a nested target": ("InputError", "the batch has a nested tensor"),
    "a transposed parameter with fsdp2": ("SpecError", r"layers.1.weight has shape \(4, 4\) and strides \(1, 4\).*or take ddp"),
    "a list that may be either": ("InputError", "the target has a list of 8 items for 8 rows, whose tensors have 8 rows each"),
    "a target inside of an object": ("InputError", "the target has a Hidden with tensors inside.*register_dataclass"),
    "a target inside of an object in another": ("InputError", "the target has a Hidden with tensors inside"),
    "a target inside of a dict of another kind": ("InputError", "the target has a UserDict with tensors inside"),
    "on the meta device": ("InputError", r'step outside of torch.device\("meta"\)'),
    "a norm of all ranks": ("SpecError", "3 is a SyncBatchNorm, which waits .* ranks along the pipeline axis do not"),
    "a model that fails": ("InputError", "Linear fails on the example inputs. RuntimeError: mat1 and mat2 shapes"),
    "another learning rate": ("InputError", "along the data axis have one model, and other parameters: data 0 and data 1"),
    "another learning rate, of every third step": ("InputError", "along the data axis have one model, and other parameters"),
    "another learning rate of wholes": ("InputError", "along the tensor axis have one model, and other parameters"),
    "a loss that draws": ("InputError", "have other losses of one batch: tensor 0 and tensor 1"),
    "begins otherwise": ("TraceError", "Started.forward gives started another value"),
    "other imaginary parts": ("InputError", "were given different batches: pipeline 0 and pipeline 1"),
    "another number in the batch": ("InputError", "the batch has 4 where the example inputs had 3, and the stages go on with"),
    "another entry that is read": ("InputError", "the batch has 2.0 where the example inputs had 1.0"),
    "a tensor in another place": ("InputError", "the batch has a NoneType where the example inputs had a Tensor"),
    "an input that is trained": ("InputError", r"tensor of shape \(8, 4\) that requires .* the pipeline axis would each"),
    "an input that is made": ("InputError", r"that requires a gradient, and microbatches would each"),
    "an array of another length": ("InputError", r"the target has a ndarray of shape \(4, 4\), and the batch 8 rows"),
    "a checkpoint of the older kind": ("SpecError", "is a checkpoint with use_reentrant=True.*give use_reentrant=False"),
    "a checkpoint of the older kind in halves": ("SpecError", "two halves, for which a checkpoint with use_reentrant=True"),
    "a checkpoint that keeps some in halves": ("SpecError", "two halves, for which a checkpoint with a context_fn is not run"),
    "eval mode later": ("InputError", "the model is in eval mode, and its stages were made in train mode"),
    "train mode later": ("InputError", "is in train mode, and its stages were made in eval mode: call model.eval()"),
    "unfrozen later": ("InputError", "more is to be trained than when .*:\n  layers.0.bias requires a gradient now"),
    "nothing trained": ("InputError", "nothing in the model requires a gradient, and a step would train nothing"),
    "nothing trained later": ("InputError", "nothing in the model requires a gradient, and a step would train nothing"),
    "one layer in eval mode later": ("InputError", "drop is in eval mode since the stages were made"),
    "all layers but one": ("InputError", "the model is in eval mode since the stages were made"),
    "in eval mode behind the part": ("InputError", "the model is in eval mode since the stages were made"),
    "one layer of the part": ("InputError", "layers is in eval mode, and the stages were made with it in train mode"),
    "another number later": ("InputError", "scale is 2.0, and was 1.0 since the stages"),
    "another parameter later": ("InputError", r"layers.\d.weight is another tensor since the stages"),
    "another method later": ("InputError", "forward reads something that has changed: .* since the stages"),
    "frozen behind fsdp2": ("InputError", "layers.0.weight of the model was frozen since .*part.get_parameter"),
    "autocast later": ("InputError", "autocast is on .*bfloat16.*, and was off"),
    "an optimizer made before, fsdp2": ("InputError", "the optimizer would train nothing: it holds layers.0.weight and 5 more"),
    "an optimizer made before, tensor": ("InputError", r"the optimizer .* Make it of the part: SGD\(part.parameters\(\)\)"),
    "two dtypes with fsdp2": ("SpecError", "has layers.0.weight of torch.float32 and gate.weight of torch.bfloat16; take ddp"),
    "sparse gradients": ("SpecError", "embedding has a sparse gradient, which ddp cannot reduce: leave out sparse=True"),
    "writes a parameter": ("SpecError", r"forward writes the parameter weight \(max_norm of an embedding does\), each copy by"),
    "writes a parameter again": ("SpecError", "runs a forward again with copies of .* the parameter weight"),
    "the plain model saved": (
        "CheckpointError",
        "this is the whole Layers, of which ranks train parts, and layers",
    ),
    "loss with a layer": ("InputError", r"loss_fn reads a parameter of shape \(1, 4\) by itself"),
    "loss of parameters": ("InputError", r"loss_fn reads a parameter of shape \(4,.*\) by itself"),
    "an optimizer of matrices": (
        "InputError",
        "Adafactor looks at whole matrices, and of layers.0.weight",
    ),
    "an optimizer of what is not sharded": ("InputError", r"Rprop does not work on what fsdp2 shards: take another optimizer"),
    "a fused optimizer of what is not sharded": ("InputError", "SGD with fused=True does not work on .*: leave out fused=True"),
    "wholes for shards": (
        "InputError",
        r"layers.0.weight of shape \(4, 4\) is not this rank's part of it: load_state_dict takes",
    ),
    "wholes for parts": (
        "InputError",
        r"layers.0.weight of shape \(4, 4\) is not this rank's part of it: load_state_dict takes",
    ),
    "an optimizer of the whole model": ("InputError", "LBFGS looks at the whole model at once"),
    "without gradients": ("InputError", "a step has a backward, and gradients are off here"),
    "a loss that is a sum by hand": (
        "InputError",
        "is a sum, and the losses of 4 microbatches and copies are averaged",
    ),
    "a loss that is a sum": ("InputError", "the loss is a sum, and the losses of [24] microbatches and copies are averaged"),
    "a loss of all pairs": ("InputError", "the loss is no mean over rows"),
    "a loss of all pairs in a pipeline": ("InputError", "the loss is no mean over rows"),
    "a loss of the hardest rows": ("InputError", "the loss is no mean over rows"),
    "a model's loss of all pairs": ("InputError", "the loss is no mean over rows"),
    "a model's loss that is a sum": ("InputError", "the loss is a sum, and the losses of 4 microbatches"),
    "a loss that is a sum by a number": ("InputError", "the loss is a sum, and the losses of 4 microbatches"),
    "a loss of a loop of rows": ("InputError", "the loss is a sum, and the losses of 4 microbatches"),
    "a model's loss that is a sum by a number": ("InputError", "the loss is a sum, and the losses of 4 microbatches"),
    "a loss weighed by all rows": ("InputError", "the loss is no mean over rows"),
    "a model's loss of what is a number": ("InputError", "the loss is no mean over rows"),
    "the root of a mean": ("InputError", "the loss is no mean over rows"),
    "loss no scalar": (
        "InputError",
        r"loss_fn gave a tensor of shape \(4,\), torch.float32 on cpu; a real scalar",
    ),
    "loss of complex numbers": ("InputError", r"loss_fn gave a tensor of shape \(\), torch.complex64 on cpu; a real scalar"),
    "loss no tensor": ("InputError", "loss_fn gave a float"),
    "loss without a gradient": ("InputError", "loss_fn gave a tensor without a gradient, and a step would train nothing"),
    "frozen on one rank": ("RanksError", r"trained: 6 parameters, \w+ on rank 0, and 4 parameters, \w+ on rank 1"),
    "autocast on one rank": ("RanksError", "autocast: off on rank 0, and on for cpu in bfloat16 on rank 1"),
    "a parameter of the part replaced": ("InputError", "layers.0.weight was replaced in the part since its stages were made"),
    "a layer of the part pruned": (
        "InputError",
        "layers.0.weight was taken out of the part .* add, prune, parametrize and tie",
    ),
    "a layer of the part parametrized": ("InputError", "layers.0.weight was taken out of the part since its stages were made"),
    "a parameter added to the part": ("InputError", "more was added to the part since its stages were made"),
    "the part in another dtype": ("InputError", "layers.0.weight is torch.float64 on cpu .* and they are for torch.float32"),
    "the part in another dtype with fsdp2": (
        "InputError",
        "layers.0.weight would be torch.float64 on cpu, and fsdp2 shards it",
    ),
    "the part emptied with fsdp2": ("InputError", "layers.0.weight would be new, and fsdp2 shards it"),
    "the model in another dtype": ("InputError", "layers.0.weight is torch.float64 on cpu .* and they are for torch.float32"),
    "a hook of a layer of the part": ("InputError", "layers.0 has a hook, and a part's layers are never called"),
    "hooks on sharded gradients": ("InputError", "layers.0.weight has a hook on its gradient, which torch does not call"),
    "hooks on gradients of the model": ("InputError", "layers.0.weight of the model has a hook on its gradient"),
    "hooks before copies agree": ("InputError", "layers.0.weight has a hook .* called before the copies are averaged"),
    "hooks before stages agree": ("InputError", "weight has a hook .* called before the stages that have it"),
    "hooks before all microbatches": ("InputError", "layers.0.weight has a hook .* called for each of 2 microbatches"),
    "a hook of all modules": ("InputError", "a hook of all modules was registered .*FlopCounterMode"),
    "what was made under inference mode": (
        "InputError",
        r"the batch has a tensor of shape \(8, 4\) that was made under .*clone",
    ),
    "a part pickled": ("InputError", r"one rank's part of a model cannot be pickled: save\(folder, part\)"),
}
READ_BY_EACH = {
    "a loss that takes nothing": "loss_fn takes nothing by place",
    "no section": "the spec has no section distributed",
    "unknown schedule": 'distributed.schedule: "2f2b" should be',
    "too few microbatches": "1f1b needs as many microbatches as ranks: 2, and 1 were asked",
    "one stage for several": "looped_bfs gives each rank several stages; set stages_per_rank",
    "several stages for one": "1f1b gives each rank one stage, and stages_per_rank is 2",
    "zero bubble with ddp": "interleaved_zero_bubble with ddp gives wrong gradients",
    "a step at the end": "the process group of this job was destroyed, and reading a batch needs it: destroy it last",
    "clipped at the end": "the process group of this job was destroyed, and clipping gradients needs it",
    "saved at the end": "one rank's part of a model, and the process group .* was destroyed: save and load before that",
    "loaded at the end": "one rank's part of a model, and the process group of its job was destroyed",
    "made where gradients are off": "stages for training are made where gradients are off",
    "no model": "a model is a torch.nn.Module, and this is of type str",
    "no loss": "loss_fn is of type NoneType: give a function of the model's output",
    "a loss of three": "loss_fn needs output, target, weight, and is called with",
    "a loss by keyword": "loss_fn needs output, target, and is called with",
    "a class of losses": r"loss_fn is the class MSELoss: give an instance of it, MSELoss\(\)",
}
TAKEN = (
    "a right step",
    "the part in its own dtype with fsdp2",
    "hooks on gradients",
    "hooks on gradients over stages",
    "hooks behind whole gradients",
    "ops counted",
    "frozen later",
    "an optimizer made before",
    "what forward does not read",
    "frozen behind the part",
    "written behind fsdp2",
    "copies that part",
    "the plain model read",
    "a penalty",
    "a norm that is none",
    "double precision",
    "the same mode again",
    "frozen for a while",
    "evaluated beside the step",
    "evaluated beside a tensor axis",
    "evaluated beside fsdp2",
    "evaluated beside stages in turns",
    "evaluated beside stages, by copies",
    "evaluated beside stages, as another model",
    "evaluated beside copies, as another model",
    "a loop of one's own",
    "an int",
    "what forward does not read in a batch",
    "an input that is trained over copies",
    "lists and arrays",
    "lists of dicts and objects",
    "buffers that lie otherwise",
    "buffers that lie otherwise, with fsdp2",
    "buffers that lie otherwise, with a tensor axis",
    "another number of threads",
    "a norm in a checkpoint",
    "an object of one microbatch",
    "a loss inside, of one microbatch",
    "an attribute that is given once",
    "what is logged once",
    "what forward leaves elsewhere for a while",
    "a sum that is divided",
    "a model's sum that is divided",
    "weights of as many tasks as rows",
    "a pair for a loss without a target",
    "what is not finite",
    "an input returned",
    "tuned behind frozen layers",
)


SLACK = 15.0
"""Seconds by which a busy machine may be late."""


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit status, what it wrote, and when; an end that was not waited for has no time."""

    status: int
    out: str
    errors: str
    time: float | None

    @property
    def error(self) -> str:
        """The last error of its tracebacks."""
        lines = (line.removeprefix("[rank").partition("]: ")[2] for line in self.errors.splitlines())
        found = [line for line in lines if re.match(r"[\w.]+Error: .", line)]
        assert found, self.errors
        return found[-1]

    @property
    def failed_at(self) -> float:
        """When it began to fail."""
        return float(self.out.rpartition("failing at ")[2])


def torchrun(*command: object, logs: Path) -> tuple[int, list[str]]:
    """The exit status of a job of two ranks, and what each of them wrote to stderr."""
    program, *words = command
    whole = started_by(2, Path(str(program)), *words, options=("--redirects", "3", "--log-dir", str(logs)))
    done = subprocess.run(whole, env=environment(), capture_output=True, text=True, timeout=120)
    return done.returncode, [next(logs.glob(f"*/attempt_0/{rank}/stderr.log")).read_text() for rank in range(2)]


def job(count: int, how: str, where: str, rank: int, wait: float = 60.0, **spec: Any) -> list[Ended]:
    """How each rank of fail.py ended, without torchrun, which would end the others; after the wait, all are killed."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    met = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True, "WORLD_SIZE": count}
    command = [sys.executable, str(JOBS / "fail.py"), how, where, str(rank), json.dumps(spec)]
    with ExitStack() as stack:
        command.append(stack.enter_context(tempfile.TemporaryDirectory()))
        processes, files, ends = [], [], dict[int, float]()
        for number in range(count):
            pair = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
            own = environment(**met, RANK=number, LOCAL_RANK=number)
            processes.append(subprocess.Popen(command, env=own, stdout=pair[0], stderr=pair[1]))
            stack.callback(processes[-1].wait)
            stack.callback(processes[-1].kill)
            files.append(pair)
        until = time.time() + wait
        while time.time() < until and (left := [at for at, each in enumerate(processes) if each.poll() is None]):
            ends |= {at: time.time() for at in range(count) if at not in left and at not in ends}
            if how in ("hang", "stop") and left == [rank]:
                break
            time.sleep(0.05)
        ends |= {at: time.time() for at, each in enumerate(processes) if at not in ends and each.poll() is not None}
        for process in processes:
            process.kill()
        return [
            Ended(process.wait(), _written(out), _written(errors), ends.get(at))
            for at, (process, (out, errors)) in enumerate(zip(processes, files, strict=True))
        ]


def _written(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@pytest.fixture(scope="module")
def refused(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks met that asked for all that must be refused."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "cases.json").write_text(json.dumps(sorted(cases(request))))
    start(2, JOBS / "refuse.py", folder)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_said_once_by_the_first_rank(refused: list[dict[str, Any]], name: str) -> None:
    kind, text = REFUSED[name]
    first, second = (rank[name] for rank in refused)
    assert first["raised"] == kind and re.search(text, first["text"]), first["text"]
    assert (second["raised"], second["text"]) == ("SystemExit", "1")
    assert max(first["seconds"], second["seconds"]) < SLACK


@pytest.mark.parametrize("name", READ_BY_EACH)
def test_what_each_rank_reads_is_refused_before_they_are_connected(refused: list[dict[str, Any]], name: str) -> None:
    for rank in refused:
        kinds = ("SpecError", "InputError", "RanksError", "CheckpointError")
        assert rank[name]["raised"] in kinds and re.search(READ_BY_EACH[name], rank[name]["text"]), rank[name]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", TAKEN)
def test_what_is_right_is_taken(refused: list[dict[str, Any]], name: str) -> None:
    """After all that was refused: nothing of it was sent, so that connections are in order."""
    assert [rank[name]["text"] for rank in refused] == ["", ""]


def test_without_torchrun_the_error_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    says = "this process is not one of several(.|\n)*torchrun --nproc-per-node 2 program.py"
    with pytest.raises(SpecError, match=says):
        parallelize(torch.nn.Linear(4, 4), torch.ones(8, 4), {"distributed": PAIR}, torch.nn.functional.mse_loss)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"RANK": "x"}, 'RANK is "x" in the environment, where torchrun puts a number'),
        ({"WORLD_SIZE": ""}, 'WORLD_SIZE is "" in the environment'),
        ({"RANK": "2"}, "RANK is 2 in the environment, and WORLD_SIZE 2: the first rank is 0"),
        ({"MASTER_PORT": "99999"}, "not as torchrun makes it: .* but was 99999"),
        ({"MASTER_ADDR": ""}, "not as torchrun makes it: .* MASTER_ADDR expected"),
    ],
)
def test_an_environment_that_torchrun_does_not_make_is_refused(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], text: str
) -> None:
    """torch's own errors came, or a rank that is none waited for others until its time was over."""
    right = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    for name, each in (right | said).items():
        monkeypatch.setenv(name, each)
    monkeypatch.setattr(partitioner.distributed.ranks, "LEAD", 0.0)
    with pytest.raises(SpecError, match=text):
        parallelize(torch.nn.Linear(4, 4), torch.ones(8, 4), {"distributed": PAIR}, torch.nn.functional.mse_loss)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (PAIR | {"microbatches": 3}, "InputError: a batch of 8 rows does not divide into 3 microbatches"),
        ({"mesh": {"pipeline": 3}}, "SpecError: the mesh (data 1 x pipeline 3) has 3 ranks, and the job has 2"),
        (PAIR | {"microbatches": 1}, "SpecError: schedule 1f1b needs as many microbatches as ranks: 2, and 1 were asked"),
    ],
)
def test_under_torchrun_the_first_rank_alone_speaks(spec: dict[str, Any], text: str, tmp_path: Path) -> None:
    status, (first, second) = torchrun(JOBS / "fail.py", "none", "forward", 0, json.dumps(spec), tmp_path, logs=tmp_path)
    assert status == 1
    assert text in first and first.count("Traceback") == 1
    assert "Traceback" not in second and "Error" not in second, second


@pytest.mark.slow
def test_a_rank_that_raises_in_its_forward_says_so_and_the_others_say_why() -> None:
    first, second = job(2, "raise", "forward", 1, **PAIR)
    assert (first.status, second.status) == (1, 1)
    assert "ZeroDivisionError: a layer without weights" in second.errors
    assert "on rank 1 (data 0, pipeline 1), in a training step" in second.errors
    assert "RanksError: rank 0 (data 0, pipeline 0), in a training step: another rank is lost" in first.error
    assert "The cause: rank 1 (data 0, pipeline 1), in a training step: ZeroDivisionError: a layer without" in first.error
    assert first.time and first.time - second.failed_at < SLACK


def test_a_killed_rank_is_named() -> None:
    first, second = job(2, "kill", "forward", 1, **PAIR)
    assert (first.status, second.status) == (1, -9)
    assert "RanksError: rank 0" in first.error and "rank 1 is gone: killed" in first.error
    assert first.time and first.time - second.failed_at < ANSWER + SLACK


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_after_the_timeout() -> None:
    first, second = job(2, "hang", "forward", 1, **PAIR)
    assert first.status == 1 and second.time is None, "it hangs still"
    assert "RanksError: rank 0" in first.error and "rank 1 is silent: in no step, or hanging" in first.error
    assert first.time and first.time - second.failed_at < TIMEOUT + PATIENCE + SLACK


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "where", "text"),
    [
        ("kill", "start", "RanksError: rank 0, .*: another rank is lost.* rank 1 is gone"),
        ("raise", "backward", "The cause: rank 1 .*: ZeroDivisionError"),
        (
            "raise",
            "clip",
            "clipping gradients: another rank is lost.* The cause: rank 1, outside of a step: ZeroDivision",
        ),
        ("stop", "saving", "in a training step: another rank is lost.* rank 1 is gone"),  # it held the others for an hour
        ("leave", "clip", "clipping gradients: another rank is lost.* rank 1 is gone: killed, stopped, or at its end"),
        ("stop", "forward", "rank 1 is gone: killed, stopped"),
    ],
)
def test_other_ways_to_fail(how: str, where: str, text: str) -> None:
    first, second = job(2, how, where, 1, **PAIR)
    assert first.status == 1 and re.search(text, first.error), first.errors
    # one that has raised may be ended by a thread of gloo's that still runs when Python has gone
    assert second.status in {"kill": (-9,), "raise": (1, -6), "leave": (0,), "stop": (-9,)}[how], second.errors
    assert first.time and first.time - second.failed_at < TIMEOUT + PATIENCE + SLACK


@pytest.mark.slow
def test_a_rank_that_saves_alone_and_one_that_steps_say_where_they_are() -> None:
    """Each waits for something else of the other; with one process group for both, gloo took one for the other, and aborted."""
    first, second = job(2, "none", "alone", 0, **PAIR)
    assert (first.status, second.status) == (1, 1), first.errors + second.errors
    for each in (first, second):
        assert "All ranks lost each other: rank" in each.error and "has to make the same calls" in each.error
        assert "rank 0, agreeing with the others (in parallelize, save or load)" in each.error
        assert "rank 1 (data 0, pipeline 1), in a training step" in each.error


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "hang"])
def test_of_four_ranks_those_that_live_name_the_one_that_does_not(how: str) -> None:
    """Rank 0 waits for rank 1, which has done nothing wrong."""
    ended = job(4, how, "forward", 2, wait=120.0, mesh={"pipeline": 4})
    for number in (0, 1, 3):
        assert ended[number].status == 1
        assert re.search("rank 2 is (gone|silent)", ended[number].error), ended[number].errors
        assert not re.search("rank [013] is (gone|silent)|ranks", ended[number].error), ended[number].errors
        time = ended[number].time
        assert time and time - ended[2].failed_at < TIMEOUT + PATIENCE + 2 * SLACK
