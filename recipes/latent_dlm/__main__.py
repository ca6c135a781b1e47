"""`python -m recipes.latent_dlm train|sample|eval`: see docs/recipes/latent_dlm.md."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import steadygrad as sg
from recipes.common.speaking import helped, put_aside, short_log_lines

from .config import Config, doctor_says, load
from .corpus import as_text
from .evaluation import evaluate
from .latents import make_encoder
from .model import MMDiT, num_parameters
from .pace import measure_pace
from .prepared import Prepared, prepare
from .sampling import How, Sampler
from .sick import SICKNESSES, compare, in_words
from .training import load_trained, train

RUNS = Path("runs/recipes/latent_dlm")
QUICK_STEPS = 120


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m recipes.latent_dlm", description="A latent diffusion language model.")
    verbs = top.add_subparsers(dest="verb", required=True)
    for name, purpose in (
        ("train", "train it, guarded"),
        ("sample", "write sentences with it"),
        ("eval", "measure it on held-out sentences"),
        ("pace", "time guarded steps beside plain ones"),
    ):
        verb = verbs.add_parser(name, help=purpose)
        verb.add_argument("--config", default="tiny", help="tiny, small, report_892m, or a YAML file")
        verb.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change one setting")
        verb.add_argument("--out", "--run-dir", type=Path, dest="out", help=f"folder of the run; {RUNS}/NAME")
        verb.add_argument("--cache", type=Path, default=RUNS / "cache", help="where tokens and latents are kept")
        verb.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        verb.add_argument("--seed", type=int, help="default: training.seed of the configuration")
        verb.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
        if name == "train":
            verb.add_argument(
                "--steps", type=int, help="default: as the configuration says; 120 with --quick and --sick"
            )
            verb.add_argument("--quick", action="store_true", help="120 steps: about a minute on two idle cores")
            verb.add_argument("--resume", action="store_true", help="go on from the last good checkpoint")
            kinds = f"fail on purpose, in a plain, a zeroing and a guarded loop: {', '.join(SICKNESSES)}"
            verb.add_argument("--sick", nargs="?", const="zero-latent", choices=list(SICKNESSES), help=kinds)
        if name in ("sample", "eval"):
            verb.add_argument("--temperature", type=float, default=How.temperature)
            verb.add_argument("--guidance", type=float, default=How.guidance)
            verb.add_argument("--sampling-steps", type=int, default=How.steps)
            verb.add_argument("--count", type=int, help="how many sentences")
        if name == "sample":
            verb.add_argument("--like", metavar="TEXT", help="text from the latent of this sentence")
        if name == "pace":
            verb.add_argument("--rounds", type=int, default=10)
            verb.add_argument("--steps-per-round", type=int, default=10)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    what = "a diffusion language model over text and its latent (docs/recipes/latent_dlm.md)"
    if helped(arguments, "latent_dlm", what, "train --quick", "train, sample, eval, pace"):
        return 0
    short_log_lines()
    given = parser().parse_args(arguments)
    try:
        return run(given)
    except sg.SteadyError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130


def run(given: argparse.Namespace) -> int:
    config, _ = load(given.config, given.set)
    changes: dict[str, Any] = {} if given.seed is None else {"seed": given.seed}
    if getattr(given, "steps", None) is not None:
        changes["num_train_steps"] = given.steps
    elif given.verb == "train" and (given.quick or given.sick):
        changes["num_train_steps"] = min(QUICK_STEPS, config.training.num_train_steps)
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, **changes))
    run_dir = given.out or RUNS / config.name

    def say(words: str) -> None:
        if not given.json:
            print(words, flush=True)

    for line in doctor_says(config):
        say(f"doctor: {line}")
    data = prepare(config, given.cache, device=given.device).to(given.device)
    say(f"{config.name}: {len(data.train)} sentences, {len(data.val)} held out, latents by {data.encoder}")
    match given.verb:
        case "train" if given.sick:
            folder = run_dir / f"sick-{given.sick}"
            put_aside(folder, "run.json")
            made = compare(given.sick, config, data, folder, device=given.device, show=not given.json)
            say(in_words(made))
            return _told(given, made.plain())
        case "train":
            return _train(given, config, data, run_dir, say)
        case "sample":
            return _sample(given, config, data, run_dir, say)
        case "eval":
            return _evaluate(given, config, data, run_dir, say)
        case _:
            pace = measure_pace(config, data, device=given.device, rounds=given.rounds, steps=given.steps_per_round)
            say(f"guarded / plain step time {pace['ratio']:.4f}  (plain {pace['plain_ms']:.2f} ms)")
            return _told(given, pace)


def _told(given: argparse.Namespace, found: dict[str, Any]) -> int:
    if given.json:
        print(json.dumps(found))
    return 0


def _train(given: argparse.Namespace, config: Config, data: Prepared, run_dir: Path, say: Any) -> int:
    with torch.device("meta"):
        say(f"{num_parameters(MMDiT(config)) / 1e6:.1f} M parameters on {given.device}, journal in {run_dir}")
    result, _ = train(config, data, run_dir, device=given.device, resume=given.resume, show=not given.json)
    for name in ("text", "latent"):
        first, last = result.first[name], result.last[name]
        say(f"validation {name:<7} {first:.3f} -> {last:.3f}  ({100 * (last / first - 1):+.1f} %)")
    say(f"{result.guard['applied']} updates, {result.guard['skipped']} refused, {result.seconds:.0f} s")
    if result.interrupted:
        say("Stopped. `train --resume` goes on from the last checkpoint; `sample` and `eval` use these weights.")
    _told(given, result.plain())
    return 130 if result.interrupted else 0


def _how(given: argparse.Namespace) -> How:
    return How(steps=given.sampling_steps, temperature=given.temperature, guidance=given.guidance)


def _sample(given: argparse.Namespace, config: Config, data: Prepared, run_dir: Path, say: Any) -> int:
    model = load_trained(config, run_dir, given.device)
    sampler = Sampler(model, config, given.device, seed=config.training.seed)
    count = given.count or 8
    if given.like is not None:
        encode, _ = make_encoder(config.latent.encoder, config.latent.dim, given.device)
        latent_BZ = data.scale.standardise(encode([given.like])).repeat(count, 1)
        tokens_BT = sampler.text_from_latent(latent_BZ, _how(given))
    else:
        tokens_BT, _ = sampler.unconditional(count, _how(given))
    texts = [as_text(data.tokenizer, ids) for ids in tokens_BT.tolist()]
    for text in texts:
        say(f"  {text}")
    return _told(given, {"like": given.like, "texts": texts})


def _evaluate(given: argparse.Namespace, config: Config, data: Prepared, run_dir: Path, say: Any) -> int:
    model = load_trained(config, run_dir, given.device)
    encode, _ = make_encoder(config.latent.encoder, config.latent.dim, given.device)
    found = evaluate(
        model, config, data, encode, device=given.device, seed=config.training.seed, sentences=given.count or 200,
        how=_how(given),
    )  # fmt: skip
    for name, value in found.validation.items():
        say(f"validation {name:<13} {value:.3f}")
    say(
        f"text from latent is nearer its own than a random one: {100 * found.latent_to_text:.1f} % of {found.sentences}"
    )
    say(
        f"latent from text is nearer its own than a random one: {100 * found.text_to_latent:.1f} % of {found.sentences}"
    )
    for wanted, text in found.examples:
        say(f"  {wanted}\n    -> {text}")
    say("out of nothing:")
    for text in found.unconditional:
        say(f"  {text}")
    (run_dir / "eval.json").write_text(json.dumps(found.plain(), indent=1) + "\n", encoding="utf-8")
    return _told(given, found.plain())


if __name__ == "__main__":
    sys.exit(main())
