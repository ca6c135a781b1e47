"""Patches on torch are not noticed: by frames, warnings, signatures, identities, copies, scripts and compilers."""

from __future__ import annotations

from pathlib import Path

from plain_and_guarded import both

# Each prints on its last line, as JSON, what it noticed.
WARNED = """
import json, sys, warnings
import torch

seen = []
def show(message, category, filename, lineno, file=None, line=None):
    seen.append([str(message)[:60], category.__name__, filename.rpartition("/")[2], lineno])
warnings.showwarning = show
warnings.simplefilter("always")

model = torch.nn.Linear(3, 1)
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight, weight], lr=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
schedule.step()
optimizer.step()
schedule.step()
schedule.step(7)
torch.nn.utils.clip_grad_norm_((p for p in ()), 1.0)
torch.nn.utils.clip_grad_norm(model.parameters(), 1.0)

class Mine(torch.optim.lr_scheduler.LRScheduler):
    def get_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]
    def step(self, epoch=None):
        warnings.warn("my own step", stacklevel=2)
        super().step()

mine = Mine(optimizer)
mine.step()
replica = torch.nn.Linear(2, 1)
replica._is_replica = True
replica.zero_grad()

class Scaled(torch.optim.SGD):
    def step(self, closure=None, *, grad_scaler=None):
        return super().step(closure)

scaled = Scaled(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
scaler.scale(model(torch.ones(2, 3)).sum()).backward()
scaler.step(scaled)
scaler.update()
print(json.dumps(seen))
"""


def test_a_warning_of_torch_names_the_same_line_as_alone(tmp_path: Path) -> None:
    alone, guarded = both(WARNED, tmp_path).told()
    assert len(alone) >= 8
    assert {name for _, _, name, _ in alone} >= {"train.py"}
    assert guarded == alone


LOOKED_AT = """
import copy, inspect, io, json, pickle
import torch
from torch.nn.utils import clip_grad_norm_

def public(thing, name):
    function = getattr(thing, name)
    return [name, list(inspect.signature(function).parameters), function.__name__, function.__qualname__,
            function.__module__, function.__doc__, inspect.getsource(function), callable(function)]

torch.manual_seed(0)
optim, scheduler = torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler
model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    schedule.step()

def hooks(module):
    names = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
             "_forward_pre_hooks_with_kwargs", "_backward_hooks")
    return [len(getattr(part, name)) for part in module.modules() for name in names]

buffer = io.BytesIO()
torch.save(model, buffer)
buffer.seek(0)
saved = torch.load(buffer, weights_only=False)
copies = [copy.deepcopy(model), saved, pickle.loads(pickle.dumps(model)), copy.copy(model)]
other = pickle.loads(pickle.dumps(optimizer))
print(json.dumps({
    "functions": [public(*each) for each in [
        (optim, "__init__"), (optim, "zero_grad"), (torch.nn.Module, "zero_grad"), (torch.Tensor, "backward"),
        (scheduler, "step"), (scheduler, "__init__"), (torch.amp.GradScaler, "step"), (torch.amp.GradScaler, "scale"),
        (torch.nn.utils, "clip_grad_norm_"), (torch.optim.swa_utils.AveragedModel, "update_parameters"),
        (torch.jit, "script"), (torch.jit, "trace")]],
    "one": [torch.nn.utils.clip_grad_norm_ is torch.nn.utils.clip_grad.clip_grad_norm_ is clip_grad_norm_,
            pickle.loads(pickle.dumps(clip_grad_norm_)) is clip_grad_norm_,
            pickle.loads(pickle.dumps(torch.jit.script)) is torch.jit.script],
    "hooks": [hooks(each) for each in copies[:3]],
    "optimizer": [sorted(vars(optimizer)), sorted(vars(other)), sorted(optimizer.state_dict())],
    "schedule": sorted(schedule.state_dict()),
    "parameters": [sorted(vars(parameter)) for parameter in model.parameters()],
    "model": sorted(vars(model)),
    "wrapped": hasattr(optimizer.step, "_wrapped_by_lr_sched"),
    "rng": torch.random.get_rng_state().sum().item(),
}))
"""


def test_signatures_identities_copies_and_pickles_are_those_of_the_program_alone(tmp_path: Path) -> None:
    alone, guarded = both(LOOKED_AT, tmp_path).told()
    assert all(alone["one"])
    assert guarded == alone


SCRIPTED = """
import copy, json
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
import torch.distributed.optim.functional_adadelta

def outer():
    from torch import Tensor as Local

    @torch.jit.script
    class Pair:
        def __init__(self, x: Local):
            self.x = x
    @torch.jit.script
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * x).sum()
    return f

class Old(torch.jit.ScriptModule):
    @torch.jit.script_method
    def forward(self, x):
        return x + 1

unit = torch.jit.CompilationUnit("def double(x):\\n  return x * 2\\n")
f = outer()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for k in range(3):
    optimizer.zero_grad()
    f(model(Old()(torch.ones(8, 4)))).backward()
    optimizer.step()
x = torch.ones(2, 4)
made = [torch.jit.script(model), torch.jit.script(copy.deepcopy(model)), torch.jit.trace(model, x),
        torch.jit.script(torch.optim.swa_utils.AveragedModel(model).module), torch.fx.symbolic_trace(model)]
model.eval()
made.append(torch.jit.freeze(torch.jit.script(model)))
model.train()
for _ in range(2):
    optimizer.zero_grad()
    made[0](x).sum().backward()  # a scripted model shares the weights
    optimizer.step()
print(json.dumps([[type(each).__name__, each(x).sum().item()] for each in made] + [unit.double(x).sum().item()]))
"""


def test_models_and_functions_are_scripted_traced_and_frozen_as_alone(tmp_path: Path) -> None:
    alone, guarded = both(SCRIPTED, tmp_path).told()
    assert len(alone) == 7
    assert guarded == alone


SUBCLASSED = """
import json
import torch

class Tagged(torch.Tensor):
    calls = []
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.backward:
            cls.calls.append("backward")
        return super().__torch_function__(func, types, args, kwargs or {})

class Odd(torch.optim.Optimizer):
    def __init__(self, model, *, rate, **more):
        self.made = "before"
        super().__init__([{"params": list(model.parameters()), "rate": rate}], {"more": more})
        self.made = "after"
    def zero_grad(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["rate"] * parameter.grad
        return "mine"

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
odd = Odd(model, rate=0.1, anything=1)
answers = []
for _ in range(3):
    odd.zero_grad()
    model(torch.ones(2, 3).as_subclass(Tagged)).sum().backward()
    answers.append(odd.step())
print(json.dumps([odd.made, answers, Tagged.calls, [p.sum().item() for p in model.parameters()]]))
"""


def test_tensor_subclasses_and_optimizers_of_any_signature_behave_as_alone(tmp_path: Path) -> None:
    ends = both(SUBCLASSED, tmp_path)
    alone, guarded = ends.told()
    assert guarded == alone
    assert (ends.summary["steps"], ends.summary["backwards"]) == (3, 3)  # once each, though torch calls it twice


COMPILED = """
import json
import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)

@torch.compile(backend="eager", fullgraph=True)
def loss_of(x):
    return model(x).pow(2).mean()

@torch.compile(backend="eager")
def step():
    torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)
    optimizer.step()
    optimizer.zero_grad()

for _ in range(4):
    loss_of(torch.ones(2, 3)).backward()
    step()
    schedule.step()
print(json.dumps([[p.sum().item() for p in model.parameters()], schedule.last_epoch]))
"""


def test_a_compiled_program_ends_as_alone(tmp_path: Path) -> None:
    alone, guarded = both(COMPILED, tmp_path).told()
    assert guarded == alone


FREED = """
import gc, json, weakref
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
alive = []

def look(*references):
    gc.collect()
    alive.append([reference() is not None for reference in references])

def train():
    for number in range(6):
        inputs, labels = torch.randn(5, 4), torch.randint(0, 3, (5,))
        logits = model(inputs)
        scores = logits.detach().softmax(-1)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        mine = [weakref.ref(tensor) for tensor in (scores, logits, loss)]
        del scores, logits, loss
        look(*mine)
        optimizer.step()
        look(*mine)

train()
print(json.dumps(alive))
"""


def test_tensors_that_the_program_deletes_are_freed_as_alone(tmp_path: Path) -> None:
    alone, guarded = both(FREED, tmp_path).told()
    assert guarded == alone


LOOKED_INTO = """
import hashlib, json, random
import torch
from torch import nn

random.seed(3)
torch.manual_seed(17)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
model = model.to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), 0.002)
losses = []
for _ in range(30):
    x = torch.randn(16, 6, dtype=torch.bfloat16) * (1 + random.random())
    loss = (model(x) - x[:, :1].abs()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
values = {name: value.double().sum().item() for name, value in model.state_dict().items()}
print(json.dumps([losses, values, random.random(), torch.rand(()).item()]))
"""


def test_an_update_that_is_looked_into_leaves_statistics_and_random_numbers_as_alone(tmp_path: Path) -> None:
    runs = both(LOOKED_INTO, tmp_path, diagnose="auto")
    alone, guarded = runs.told()
    assert guarded == alone
    assert [each["symptom"] for each in runs.summary["incidents"]] == ["silent"]


LEFT_OUT_OF_THE_OPTIMIZER = """
import json
import torch
from torch import nn

torch.manual_seed(57)
model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.Adam([p for name, p in model.named_parameters() if "bias" not in name], 1e-2)
losses = []
for _ in range(20):
    x = torch.randn(8, 5)
    loss = (model(x) - x[:, :1]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps([losses, [p.double().sum().item() for p in model.parameters()]]))
"""


def test_parameters_of_no_optimizer_are_not_moved_by_a_trial_of_a_remedy(tmp_path: Path) -> None:
    runs = both(LEFT_OUT_OF_THE_OPTIMIZER, tmp_path, diagnose="auto")
    alone, guarded = runs.told()
    assert guarded == alone
    assert [each["symptom"] for each in runs.summary["incidents"]] == ["silent"]


RAISED = """
import json, logging, io, traceback
import torch
from torch import nn

class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("in backward")

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        raise KeyError("in the data")

class Schedule(torch.optim.lr_scheduler.LRScheduler):
    def get_lr(self):
        if self.last_epoch > 0:
            raise ArithmeticError("in the schedule")
        return [group["lr"] for group in self.optimizer.param_groups]

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = Schedule(optimizer)
stream = io.StringIO()
logger = logging.getLogger("mine")
logger.addHandler(logging.StreamHandler(stream))

def closure():
    raise RuntimeError("in the closure")

def backward():
    Raises.apply(model(torch.ones(2, 3))).sum().backward()

def twice():
    loss = model(torch.ones(2, 3)).pow(2).sum()
    loss.backward()
    loss.backward()

said, errors = [], []
for act in (backward, twice, lambda: optimizer.step(closure), schedule.step,
            lambda: next(iter(torch.utils.data.DataLoader(Data())))):
    try:
        act()
    except Exception as error:
        said.append(traceback.format_exc())
        logger.exception("caught")
        errors.append([type(error).__name__, error.__context__ is None, error.__cause__ is None,
                       [frame.name for frame in traceback.extract_tb(error.__traceback__)]])
print(json.dumps([said, stream.getvalue(), errors]))
"""


def test_a_traceback_that_the_program_writes_of_an_error_it_catches_is_that_of_the_plain_run(tmp_path: Path) -> None:
    alone, guarded = both(RAISED, tmp_path).told()
    assert len(alone[2]) == 5
    assert guarded == alone
