"""One small driver for each entry point: `train(entry, scenario)` trains guarded, `plain(entry, scenario)` without.

A driver builds the training, runs it as a user of that entry point would, and says how it ended. `steady run` and ranks
run in processes of their own; `train_all` runs several scenarios in one of them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from instruments import instrumented, sampled
from scenario import ROWS, Made, Result, Scenario, change, collect, ended, hearing, make, plain_loop, write_json

import steadygrad as sg
from steadygrad.records import to_plain

GUARD, OPTIMIZER, TRAINER = "Guard", "attach(optimizer)", "attach(Trainer)"
LIGHTNING, ACCELERATE, RUN, RANKS = "attach(Lightning)", "attach(Accelerate)", "steady run", "ranks"
ENTRIES = (GUARD, OPTIMIZER, TRAINER, LIGHTNING, ACCELERATE, RUN, RANKS)
IN_PROCESS = ENTRIES[:5]
KEEPS_GOOD_MICRO_BATCHES = (GUARD, RANKS)
"""Where a bad micro-batch leaves an accumulation window alone; elsewhere the whole window goes."""
HERE = Path(__file__).parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def train(entry: str, scenario: Scenario, run_dir: Path | None = None) -> Result:
    """This training, guarded at this entry point."""
    return train_all(entry, [scenario], run_dir)[0]


def plain(entry: str, scenario: Scenario) -> Result:
    """The same loop without a guard. The program of `steady run` needs no process of its own for that."""
    return plain_all(entry, [scenario])[0]


def reference(entry: str, scenario: Scenario) -> Result:
    """The run that never had the bad batches, without a guard."""
    return plain(entry, without_faults(entry, scenario))


def without_faults(entry: str, scenario: Scenario) -> Scenario:
    return scenario.without_faults(whole_windows=entry not in KEEPS_GOOD_MICRO_BATCHES)


def plain_all(entry: str, scenarios: Sequence[Scenario]) -> list[Result]:
    texts = tuple(json.dumps(asdict(scenario)) for scenario in scenarios)
    if entry == RANKS:
        return _plain_ranks(texts)
    same = {RUN: GUARD, OPTIMIZER: GUARD}.get(entry, entry)  # one plain loop for the three
    return [_plain_here(same, text) for text in texts]


@functools.cache
def _plain_here(entry: str, text: str) -> Result:
    return _in_process(entry, Scenario.load(json.loads(text)), guarded=False)


@functools.cache
def _plain_ranks(texts: tuple[str, ...]) -> list[Result]:
    return _ranks([Scenario.load(json.loads(text)) for text in texts], guarded=False)


def train_all(entry: str, scenarios: Sequence[Scenario], run_dir: Path | None = None) -> list[Result]:
    """These trainings one after another, in one process where the entry point needs one of its own."""
    if entry == RUN:
        return _steady_run(scenarios, run_dir)
    if entry == RANKS:
        return _ranks(scenarios, guarded=True, run_dir=run_dir)
    run = functools.partial(_in_process, entry, run_dir=run_dir, guarded=True)
    return [
        result for s in scenarios for result in (sampled(s, run) if s.breaks.startswith("sample:") else [run(s)])
    ]  # fmt: skip


_groups: dict[tuple[str, str], dict[str, Result]] = {}


def trained(entry: str, group: dict[str, Scenario], name: str) -> Result:
    """The training of that name, guarded. Where starting a process is dear the whole group is trained in one."""
    if entry not in (RUN, RANKS):
        return train(entry, group[name])
    key = (entry, json.dumps({name: asdict(scenario) for name, scenario in group.items()}))
    if key not in _groups:
        _groups[key] = dict(zip(group, train_all(entry, list(group.values())), strict=True))
    return _groups[key][name]


def untrained(entry: str, group: dict[str, Scenario], name: str) -> Result:
    """The training of that name as `group` has it, without a guard."""
    return (
        plain_all(entry, list(group.values()))[list(group).index(name)] if entry == RANKS else plain(entry, group[name])
    )


# -- in this process


def _in_process(entry: str, scenario: Scenario, *, run_dir: Path | None = None, guarded: bool) -> Result:
    result = Result(run_dir=str(run_dir or ""))
    out = io.StringIO()
    with hearing(result), warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(out):
        warnings.simplefilter("always")
        _DRIVERS[entry](scenario, result, run_dir, guarded)
    result.stdout = out.getvalue()
    result.warnings = [f"{each.category.__name__}: {each.message}" for each in caught]
    return result


def note_guard(result: Result, guard: Any) -> None:
    """What the guard says at the end, as plain data."""
    result.summary = to_plain(guard.summary())
    result.incidents = [to_plain(incident) for incident in guard.incidents]


@contextlib.contextmanager
def running(it: Made, result: Result) -> Iterator[None]:
    """Around a training: the instruments, and how it ended."""
    try:
        with instrumented(it, result):
            yield
    except Exception as error:
        if not it.scenario.catch:
            raise
        ended(result, error)


def guard_options(scenario: Scenario, run_dir: Path | None) -> dict[str, Any]:
    return {"run_dir": run_dir, "diagnose": scenario.diagnose, **scenario.options}


def guard_loop(it: Made, result: Result, run_dir: Path | None) -> None:
    """`sg.Guard` around the training, on one process or on a rank."""
    scenario = it.scenario

    def loss_fn(model: Any, batch: Any) -> Any:
        loss = model(**batch)["loss"]
        return None if scenario.skips_itself and not torch.isfinite(loss) else loss

    guard = sg.Guard(
        it.model, it.optimizer, loss_fn, max_grad_norm=scenario.clip, scheduler=it.scheduler, ema=it.ema,
        scaler=it.scaler, accumulate=scenario.accumulate, **guard_options(scenario, run_dir),
    )  # fmt: skip
    try:
        with running(it, result):
            for index in range(scenario.steps):
                batch = it.data.draw(index)
                change(it, index)
                if index not in scenario.left_out:
                    guard.step(batch)
            guard.settle()
    finally:
        guard.close()
        note_guard(result, guard)


def _drive_guard(scenario: Scenario, result: Result, run_dir: Path | None, guarded: bool) -> None:
    it = make(scenario, leave_out=False)
    if guarded:
        guard_loop(it, result, run_dir)
    else:
        with running(it, result):
            plain_loop(it)
    collect(it, result)


def _drive_optimizer(scenario: Scenario, result: Result, run_dir: Path | None, guarded: bool) -> None:
    it = make(scenario, leave_out=False)
    guard = None
    if guarded:
        options = {k: v for k, v in guard_options(scenario, run_dir).items() if k != "diagnose"}
        if scenario.give_model:
            options["model"] = it.model
        guard = sg.attach(it.optimizer, scheduler=it.scheduler, scaler=it.scaler, **options)
    try:
        with running(it, result):
            plain_loop(it)
    finally:
        if guard is not None:
            guard.close()
            note_guard(result, guard)
    collect(it, result)


def _drive_trainer(scenario: Scenario, result: Result, run_dir: Path | None, guarded: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import Trainer, TrainerCallback, TrainingArguments
    gc.freeze()  # each train() collects garbage, and all that was imported is not

    class Changes(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            change(it, state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if it.ema is not None:
                it.ema.update_parameters(it.model)

    class SkipsItself(Trainer):
        """Leaves out the backward of a batch whose loss is not finite, as repaired trainers do."""

        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            model.train()
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
            if not torch.isfinite(loss):
                return torch.zeros(())
            self.accelerator.backward(loss)
            return loss.detach()

    it = make(scenario)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=ROWS, num_train_epochs=1, use_cpu=True, report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True, max_grad_norm=scenario.clip or 0.0, seed=3,
            gradient_accumulation_steps=scenario.accumulate, remove_unused_columns=False,
            train_sampling_strategy="sequential", label_names=["y"],
        )  # fmt: skip
        trainer = (SkipsItself if scenario.skips_itself else Trainer)(
            model=it.model, args=arguments, train_dataset=it.data, data_collator=torch.utils.data.default_collate,
            optimizers=(it.optimizer, it.scheduler or _no_schedule(it)), callbacks=[Changes()],
        )  # fmt: skip
        guard = sg.attach(trainer, **guard_options(scenario, run_dir)) if guarded else None
        made = make(scenario)  # the seeds that every training begins with; the trainer's own arguments drew some
        del made
        try:
            with running(it, result):
                trainer.train()
        finally:
            if guard is not None:
                note_guard(result, guard)
                guard.close()
    collect(it, result)


def _no_schedule(it: Made) -> Any:
    return torch.optim.lr_scheduler.StepLR(it.optimizer, 1_000_000)


def _drive_lightning(scenario: Scenario, result: Result, run_dir: Path | None, guarded: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import logging

        import lightning.pytorch as pl

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = it.model

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.net(**batch)["loss"]
            return None if scenario.skips_itself and not torch.isfinite(loss) else loss

        def configure_optimizers(self) -> Any:
            if it.scheduler is None:
                return it.optimizer
            return {"optimizer": it.optimizer, "lr_scheduler": {"scheduler": it.scheduler, "interval": "step"}}

    class Changes(pl.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            change(it, batch_idx)

        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            if it.ema is not None:
                it.ema.update_parameters(it.model)

    it = make(scenario)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, gradient_clip_val=scenario.clip, accumulate_grad_batches=scenario.accumulate,
        callbacks=[Changes()],
    )  # fmt: skip
    guard = sg.attach(trainer, **guard_options(scenario, run_dir)) if guarded else None
    loader = torch.utils.data.DataLoader(it.data, batch_size=ROWS)
    module = Module()
    try:
        with running(it, result):
            trainer.fit(module, loader)
    finally:
        if guard is not None:
            note_guard(result, guard)
            guard.close()
    collect(it, result)


def _drive_accelerate(scenario: Scenario, result: Result, run_dir: Path | None, guarded: bool) -> None:
    import accelerate
    from accelerate.state import AcceleratorState, GradientState

    accelerator = accelerate.Accelerator(gradient_accumulation_steps=scenario.accumulate, cpu=True)
    it = make(scenario)
    loader = torch.utils.data.DataLoader(it.data, batch_size=ROWS)
    given = [it.model, it.optimizer, loader, *([it.scheduler] if it.scheduler is not None else [])]
    model, optimizer, loader, *schedulers = accelerator.prepare(*given)
    guard = sg.attach(accelerator, **guard_options(scenario, run_dir)) if guarded else None
    try:
        with running(it, result):
            for index, batch in enumerate(loader):
                change(it, index)
                with accelerator.accumulate(model):
                    loss = model(**batch)["loss"]
                    if scenario.skips_itself and not torch.isfinite(loss):
                        continue
                    accelerator.backward(loss)
                    if accelerator.sync_gradients and scenario.clip is not None:
                        accelerator.clip_grad_norm_(model.parameters(), scenario.clip)
                    optimizer.step()
                    for scheduler in schedulers:
                        scheduler.step()
                    if it.ema is not None and accelerator.sync_gradients:
                        it.ema.update_parameters(it.model)
                    optimizer.zero_grad()
    finally:
        if guard is not None:
            guard.close()
            note_guard(result, guard)
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    collect(it, result)


_DRIVERS: dict[str, Callable[[Scenario, Result, Path | None, bool], None]] = {
    GUARD: _drive_guard,
    OPTIMIZER: _drive_optimizer,
    TRAINER: _drive_trainer,
    LIGHTNING: _drive_lightning,
    ACCELERATE: _drive_accelerate,
}


# -- in processes of their own


def environment() -> dict[str, str]:
    """For a child that must find this checkout and these helpers, and that nothing of ours is armed in."""
    source = str(Path(sg.__file__).resolve().parents[1])
    path = os.pathsep.join([source, str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def steady(*words: str, cwd: Path | None = None, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """The command `steady` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "steadygrad.commands", *words], capture_output=True, text=True, cwd=cwd,
        env=environment(), timeout=timeout,
    )  # fmt: skip


def _steady_run(scenarios: Sequence[Scenario], run_dir: Path | None) -> list[Result]:
    """A program that trains these one after another, under `steady run`."""
    from steadygrad.journal import read_incidents
    from steadygrad.records.errors import JournalError

    with tempfile.TemporaryDirectory() as folder:
        place = run_dir or Path(folder, "run")
        job, answer = Path(folder, "job.json"), Path(folder, "answer.json")
        write_json(job, [asdict(scenario) for scenario in scenarios])
        program = str(HERE / "run_program.py")
        options = ["--json", "--diagnose", scenarios[0].diagnose, "--run-dir", str(place)]
        child = steady("run", *options, program, str(job), str(answer), cwd=Path(folder))
        results = [Result.load(each) for each in json.loads(answer.read_text())] if answer.exists() else []
        results += [Result(error="no answer", message=child.stderr[-2000:])] * (len(scenarios) - len(results))
        try:
            incidents = [to_plain(incident) for incident in read_incidents(place)]
        except JournalError:
            incidents = []
    summary = next((json.loads(line) for line in reversed(child.stderr.splitlines()) if line.startswith("{")), {})
    for result in results:
        result.stdout, result.log = child.stdout, child.stderr
        result.exit, result.incidents, result.summary = child.returncode, incidents, summary
        result.run_dir = str(place)
    return results


_server: subprocess.Popen[str] | None = None


def _ranks(scenarios: Sequence[Scenario], *, guarded: bool, run_dir: Path | None = None) -> list[Result]:
    """These trainings on two ranks with gloo: rank 0's results, with those of the other in `others`."""
    global _server
    if _server is None or _server.poll() is not None:
        _server = subprocess.Popen(
            [sys.executable, str(HERE / "rank_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment(),
        )  # fmt: skip
    assert _server.stdin is not None
    assert _server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        job = {
            "folder": folder, "guarded": guarded, "run_dir": str(run_dir) if run_dir else None,
            "scenarios": [asdict(scenario) for scenario in scenarios],
        }  # fmt: skip
        _server.stdin.write(json.dumps(job) + "\n")
        _server.stdin.flush()
        statuses = json.loads(_server.stdout.readline())
        by_rank = []
        for rank, status in enumerate(statuses):
            path = Path(folder, f"rank{rank}.json")
            found = [Result.load(each) for each in json.loads(path.read_text())] if path.exists() else []
            log = Path(folder, f"rank{rank}.log").read_text(errors="replace")
            found += [Result(error="no answer", message=log[-2000:])] * (len(scenarios) - len(found))
            for result in found:
                result.exit, result.stdout = -1 if status is None else status, log
            by_rank.append(found)
    for first, *rest in zip(*by_rank, strict=True):
        first.others, first.run_dir = rest, str(run_dir or "")
    return by_rank[0]


def stop_ranks() -> None:
    """End the process that starts ranks."""
    global _server
    if _server is not None and _server.stdin is not None and _server.stdout is not None:
        _server.stdin.close()
        _server.wait(timeout=60)
        _server.stdout.close()
    _server = None
