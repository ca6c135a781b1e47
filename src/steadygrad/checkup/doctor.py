"""The doctor: what is likely to go wrong, told before training starts.

    checkup = sg.doctor("train.py")                               # a script, configuration, saved arguments, or folder
    checkup = sg.doctor(model, optimizer, args=args, dataset=rows)   # live objects

Files are read and never run, without torch. Live objects are measured (`live_objects.py`, `dataset_rows.py`) and
judged as plain facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..records.checks.checkup import Advice, Checkup, DataStatistics, Level
from ..records.errors import UsageError
from .inputs.facts import Data, Setup
from .inputs.input_files import read_target, targets
from .inputs.loop_calls import CLIPS
from .inputs.run_settings import Settings, from_object, from_script
from .inputs.script import Script, last_word
from .inputs.script_models import optimizer_calls
from .rule_selection import Selection, allowed, chosen

LIBRARIES = ("torch", "transformers", "lightning", "pytorch_lightning", "trl", "accelerate", "peft", "deepspeed")
PARTS = {"backward", "zero_grad", "manual_backward", "training_step", "fit", "autocast", "from_pretrained"} | CLIPS
MODELS = {"Module", "LightningModule", "PreTrainedModel", "Trainer", "TrainerCallback", "Function"}
ORDER = {Level.ERROR: 0, Level.WARNING: 1, Level.NOTE: 2}


def doctor(
    target: Any = None,
    optimizer: Any = None,
    *,
    args: Any = None,
    dataset: Any = None,
    tokenizer: Any = None,
    scaler: Any = None,
    scheduler: Any = None,
    precision: str = "",
    max_length: int | None = None,
    generates: bool = False,
    max_rows: int = 2000,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    show: bool = True,
) -> Checkup:
    """Everything the rules find, printed and returned.

    Args:
        target: a path (script, YAML, TOML, JSON, training_args.bin, a folder), several of them, or a model.
        optimizer: a torch optimizer or several; with a model.
        args: TrainingArguments, any dataclass or a mapping.
        dataset: rows (mappings of columns), or batches of them; the first `max_rows` are read.
        tokenizer: tells the end token, the pad token and how many tokens there are.
        scaler: the GradScaler, if one is used.
        scheduler: the learning-rate scheduler, if one is used.
        precision: "fp16", "bf16" or "fp32", if autocast is used.
        max_length: where rows were truncated; by default the largest length that several rows share.
        generates: the rows are prompts to generate from.
        max_rows: how many rows to read.
        select, ignore: codes or beginnings of codes, such as ["PF1", "PF204"].
        show: print it, with the table of labels and lengths where there is a data set; False only returns it.

    Returns:
        A Checkup: `advice`, each with code, level, place and what to do; `clean` where none is a warning or an error.

    Example:
        >>> model = torch.nn.Linear(4, 1).half()
        >>> found = sg.doctor(model, torch.optim.Adam(model.parameters()), show=False)
        >>> "PF101" in {advice.code for advice in found.advice}
        True
    """
    found = _examined(
        target, optimizer, args=args, dataset=dataset, tokenizer=tokenizer, scaler=scaler, scheduler=scheduler,
        precision=precision, max_length=max_length, generates=generates, max_rows=max_rows, select=select,
        ignore=ignore,
    )  # fmt: skip
    if show:
        print(found)
    return found


def _examined(
    target: Any,
    optimizer: Any,
    *,
    args: Any,
    dataset: Any,
    tokenizer: Any,
    scaler: Any,
    scheduler: Any,
    precision: str,
    max_length: int | None,
    generates: bool,
    max_rows: int,
    select: Sequence[str],
    ignore: Sequence[str],
) -> Checkup:
    if target is None and args is None and dataset is None:
        raise UsageError("sg.doctor needs something to look at: a path, a model, args= or dataset=.")
    if isinstance(target, str | Path) or _are_paths(target):
        paths = [Path(each) for each in ([target] if isinstance(target, str | Path) else target)]
        return doctor_files(paths, select=select, ignore=ignore)
    selection = chosen(select, ignore)
    settings = None if args is None else from_object(args)
    found: list[Advice] = [] if settings is None else list(judge(settings, selection))
    looked_at = [] if settings is None else ["args"]
    statistics: DataStatistics | None = None
    setup = None
    if target is not None:
        from .live_objects import measure, silent_errors

        setup = measure(
            target,
            optimizer,
            settings=settings,
            tokenizer=tokenizer,
            scaler=scaler,
            scheduler=scheduler,
            precision=precision,
            look=True,
        )
        found += judge(setup, selection)
        found += [each for each in silent_errors(target, optimizer) if selection.wants(each.code)]
        looked_at.append("model")
    if dataset is not None:
        from .inputs.dataset_rows import read_rows

        data = read_rows(
            dataset,
            tokenizer=tokenizer,
            max_length=max_length,
            max_rows=max_rows,
            generates=generates,
            num_embeddings=setup.num_embeddings if setup is not None else None,
            max_positions=setup.max_positions if setup is not None else None,
        )
        found += judge(data, selection)
        statistics = data.statistics
        looked_at.append("dataset")
    found.sort(key=lambda each: (ORDER[each.level], each.code))
    return Checkup(
        advice=tuple(found),
        looked_at=tuple(looked_at),
        num_rules=len(selection.judges()),
        statistics=statistics,
    )


def _are_paths(target: Any) -> bool:
    return isinstance(target, list | tuple) and bool(target) and all(isinstance(each, str | Path) for each in target)


def doctor_files(paths: Sequence[Path], *, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> Checkup:
    """The same for files. One that was named and cannot be read is an error; one found in a folder is passed over."""
    named = {path for path in paths if not path.is_dir()}
    found: list[Advice] = []
    looked_at: list[str] = []
    unchecked: list[str] = []
    num_allowed, num_rules = 0, 0
    for path in targets(list(paths)):
        selection = chosen(select, ignore, near=path.parent)
        num_rules = max(num_rules, len(selection.judges()))
        if path not in named and selection.excludes(path):
            continue
        try:
            thing = read_target(path)
        except UsageError:
            if path in named:
                raise
            continue
        recognised = _is_about_training(thing)
        if path not in named and not recognised:
            continue
        lines = thing.lines if isinstance(thing, Script) else thing.text
        advice = sorted(judge(thing, selection), key=lambda each: (each.path, each.line, each.column, each.code))
        if not recognised and not advice:
            unchecked.append(str(path))
            continue
        looked_at.append(str(path))
        kept = [each for each in advice if not allowed(each, lines if each.path == str(path) else _lines(each.path))]
        num_allowed += len(advice) - len(kept)
        found += kept
    if unchecked and not looked_at:
        raise UsageError(f"Nothing was checked: no training was recognised in {', '.join(unchecked)}.")
    if not looked_at:
        raise UsageError(f"No training script or configuration was found in {', '.join(str(path) for path in paths)}.")
    return Checkup(
        advice=tuple(found),
        looked_at=tuple(looked_at),
        num_rules=num_rules,
        num_allowed=num_allowed,
        unchecked=tuple(unchecked),
    )


def _lines(path: str) -> list[str]:
    """The lines of a file beside the one that was read: a model is often made in another one."""
    return Path(path).read_text(encoding="utf-8").splitlines()


def _is_about_training(thing: Script | Settings) -> bool:
    """Settings of a training, or a script that has a part of one: a step, a trainer, an optimizer, a model, a loss."""
    if isinstance(thing, Settings):
        return thing.kind != "unknown"
    if not thing.imports(*LIBRARIES):
        return False
    if thing.called & PARTS or any(word.endswith(("Trainer", "TrainingArguments", "Config")) for word in thing.called):
        return True
    bases = {last_word(base) for node in thing.classes.values() for base in node.bases}
    return bool(bases & MODELS) or any(True for _ in optimizer_calls(thing)) or _computes(thing)


def _computes(script: Script) -> bool:
    """Calls functions of torch on tensors, so that the rules about arithmetic have something to judge."""
    ops = (script.op(call) for call in script.calls)
    return any(op is not None and op.module.startswith("torch") and op.operand is not None for op in ops)


def judge(thing: Script | Settings | Setup | Data, selection: Selection) -> Iterator[Advice]:
    """What the selected rules say of one thing; a script's settings are judged with it."""
    match thing:
        case Script():
            for settings in from_script(thing):
                yield from _ask(selection.judges(), "of_settings", settings)
            yield from _ask(selection.judges(), "of_script", thing)
        case Settings():
            yield from _ask(selection.judges(), "of_settings", thing)
        case Setup():
            yield from _ask(selection.judges(), "of_setup", thing)
        case Data():
            yield from _ask(selection.judges(), "of_data", thing)


def _ask(rules: Iterable[ModuleType], judge_of: str, thing: Any) -> Iterator[Advice]:
    for rule in rules:
        if (ask := getattr(rule, judge_of, None)) is None:
            continue
        try:
            yield from ask(thing)
        except Exception as error:  # one rule's own fault must not silence the others
            yield Advice(
                code=rule.RULE.code,
                slug=rule.RULE.slug,
                level=Level.NOTE,
                detail=f"this rule failed on this input and judged nothing: {type(error).__name__}: {error}",
                path=getattr(thing, "path", ""),
                subject="the doctor itself",
                evidence={"fault": type(error).__name__},
            )
