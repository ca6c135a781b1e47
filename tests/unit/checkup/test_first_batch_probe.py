"""One probe of a batch: it sees leaks, wrong shifts, mixed rows and counted padding, and leaves no trace."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import healthy_models
import steadygrad as sg
from healthy_models import LENGTH, ROWS, WIDTH, WORDS, Transformer, mlp, token_loss, tokens
from steadygrad.checkup.trials import first_batch_probe
from steadygrad.checkup.trials.batch_facts import UsedOutput, padded_positions
from steadygrad.checkup.trials.batch_rules import label_shift, representation_collapse, target_leak
from steadygrad.checkup.trials.first_batch_probe import LentStep, ProbedBatch, probe_batch
from steadygrad.diagnosis.replay.guard_step import GuardStep
from steadygrad.engine.state.rng import take_rng
from steadygrad.engine.step.window import Window
from steadygrad.records import rules, to_plain

Loss = Any


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def probed(model: nn.Module, batch: Any, loss: Loss) -> ProbedBatch:
    optimizers = [torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)]
    return probe_batch(LentStep(model, optimizers, loss, batch))


def codes(model: nn.Module, batch: Any, loss: Loss) -> list[str]:
    found = probed(model, batch, loss)
    assert found.not_checked == []
    return [finding.code for finding in found.findings]


def next_token(model: nn.Module, batch: Any) -> Tensor:
    return token_loss(model(batch["ids"])[:, :-1], batch["labels"][:, 1:])


def language(ids: Tensor | None = None) -> dict[str, Tensor]:
    ids = tokens() if ids is None else ids
    return {"ids": ids, "labels": ids}


# -- every rule


@pytest.mark.parametrize("module", first_batch_probe.ALL, ids=lambda module: module.RULE.slug)
def test_rule_sees_its_specimen_and_not_its_near_miss(module: ModuleType) -> None:
    found = module.judge(*module.SPECIMEN())
    assert found is not None
    assert (found.code, found.slug) == (module.RULE.code, module.RULE.slug)
    assert found.subject
    assert found.detail
    json.dumps(to_plain(found), allow_nan=False)
    assert module.judge(*module.NEAR_MISS()) is None


@pytest.mark.parametrize("module", first_batch_probe.ALL, ids=lambda module: module.RULE.slug)
def test_rule_has_a_whole_page_and_a_file_of_its_name(module: ModuleType) -> None:
    page = rules.page(module.RULE.code)
    assert tuple(page.sections) == rules.HEADINGS
    assert all(text.strip() for text in page.sections.values())
    assert page.path.stem == page.slug == module.RULE.slug
    assert (module.__doc__ or "").splitlines()[0] == page.summary


def test_every_rule_file_is_asked() -> None:
    folder = Path(first_batch_probe.__file__).parent / "batch_rules"
    with_rule = {path.stem for path in folder.glob("*.py") if "\nRULE = " in path.read_text()}
    assert {module.RULE.slug for module in first_batch_probe.ALL} == with_rule


@pytest.mark.parametrize(("shift", "lookahead", "code"), [(1, 1, "SY450"), (1, None, "SY450"), (0, 0, "SY451")])
def test_who_sees_ahead_is_a_leak_and_who_does_not_is_a_shift(shift: int, lookahead: int | None, code: str) -> None:
    facts = target_leak.sequence(shift, lookahead)
    found = [rule.RULE.code for rule in (target_leak, label_shift) if rule.judge(facts) is not None]
    assert found == [code]


@pytest.mark.parametrize(("shift", "lookahead"), [(0, None), (-1, 0), (4, 0)])
def test_auto_encoders_and_other_targets_are_healthy(shift: int, lookahead: int | None) -> None:
    facts = target_leak.sequence(shift, lookahead)
    assert target_leak.judge(facts) is None
    assert label_shift.judge(facts) is None


# -- what the gradient of a loss tells


def test_targets_are_read_off_the_gradient_of_any_cross_entropy() -> None:
    logits, labels = torch.randn(4, 6, 9, requires_grad=True), torch.randint(0, 9, (4, 6))
    labels[1, 3:] = -100
    expected = labels.clamp(min=-1)

    def by_hand(z: Tensor) -> Tensor:
        chosen = torch.log_softmax(z, -1).gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
        return -(chosen * (labels >= 0)).sum() / 7

    def smoothed(z: Tensor) -> Tensor:
        return F.cross_entropy(z.flatten(0, 1), labels.flatten(), label_smoothing=0.05)

    for loss in (lambda z: token_loss(z, labels), by_hand, smoothed):
        (gradient,) = torch.autograd.grad(loss(logits), logits)
        used = UsedOutput.of(logits, gradient)
        assert torch.equal(used.targets, expected)
        assert torch.equal(used.counted, labels >= 0)
    (gradient,) = torch.autograd.grad(logits.pow(2).sum(), logits)
    assert int((UsedOutput.of(logits, gradient).targets >= 0).sum()) == 0


# -- leaks


class Convolution(nn.Module):
    def __init__(self, left: int, right: int) -> None:
        super().__init__()
        self.pad = (left, right)
        self.embed, self.conv, self.head = (
            nn.Embedding(WORDS, WIDTH),
            nn.Conv1d(WIDTH, WIDTH, 3),
            nn.Linear(WIDTH, WORDS),
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = F.pad(self.embed(ids).transpose(1, 2), self.pad)
        return self.head(torch.relu(self.conv(x)).transpose(1, 2))


class Recurrent(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, **options)
        self.head = nn.Linear(WIDTH * (1 + self.rnn.bidirectional), WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(ids))[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Transformer(causal=False),
        lambda: Convolution(1, 1),
        lambda: Recurrent(batch_first=True, bidirectional=True),
    ],
    ids=["no causal mask", "padded on both sides", "both directions"],
)
def test_a_model_that_sees_the_next_token_leaks(make: Any) -> None:
    assert codes(make(), language(), next_token) == ["SY450"]


@pytest.mark.parametrize(
    "make",
    [lambda: Transformer(causal=True), lambda: Convolution(2, 0), lambda: Recurrent(batch_first=True)],
    ids=["causal mask", "padded on the left", "one direction"],
)
def test_a_model_that_sees_the_past_does_not_leak(make: Any) -> None:
    assert codes(make(), language(), next_token) == []


def test_one_unmasked_layer_of_several_is_enough_and_dropout_does_not_matter() -> None:
    model = Transformer(causal=True, depth=3)
    model.head = nn.Sequential(nn.Dropout(0.5), model.head)
    assert codes(model, language(), next_token) == []
    model.blocks[1].causal = False
    assert codes(model, language(), next_token) == ["SY450"]


class PrefixAttention(Transformer):
    """The first tokens see each other, the others see what is before them."""

    def __init__(self, prefix: int) -> None:
        super().__init__(causal=False)
        self.prefix = prefix

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        places = torch.arange(ids.shape[1])
        seen = (places[None] <= places[:, None]) | (places[None] < self.prefix)
        x = self.embed(ids) + self.place(places)
        for block in self.blocks:
            block.attend = partial(_attend, block, seen)
            x = block(x)
        return self.head(x)


def _attend(block: Any, seen: Tensor, x: Tensor, memory: Tensor, keep: Tensor | None = None) -> Tensor:
    q, (k, v) = block.q(x), block.kv(memory).chunk(2, -1)
    return block.out((q @ k.transpose(-1, -2)).masked_fill(~seen, -1e9).softmax(-1) @ v)


def test_a_prefix_that_sees_itself_and_is_not_predicted_is_healthy() -> None:
    batch = language()
    batch["labels"] = batch["ids"].clone()
    batch["labels"][:, :4] = -100
    assert codes(PrefixAttention(4), batch, next_token) == []
    batch["labels"] = batch["ids"]
    assert codes(PrefixAttention(LENGTH), batch, next_token) == ["SY450"]


@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_a_denoising_auto_encoder_and_a_model_from_right_to_left_are_healthy(noise: float) -> None:
    clean = tokens()
    noisy = torch.where(torch.rand(clean.shape) < noise, tokens(), clean)
    batch = {"ids": noisy, "clean": clean}
    assert codes(Transformer(causal=False), batch, lambda m, b: token_loss(m(b["ids"]), b["clean"])) == []
    backwards = lambda m, b: token_loss(m(b["ids"].flip(1)).flip(1)[:, 1:], b["ids"][:, :-1])  # noqa: E731
    assert codes(Transformer(causal=True), {"ids": clean}, backwards) == []


def test_one_model_that_is_called_twice_in_a_loss_is_probed() -> None:
    def both(m: nn.Module, b: Any) -> Tensor:
        return token_loss(m(b[0])[:, :-1], b[0][:, 1:]) - 0.1 * token_loss(m(b[1])[:, :-1], b[1][:, 1:])

    pair = (tokens(), tokens())
    assert codes(Transformer(causal=True), pair, both) == []
    assert codes(Transformer(causal=False), pair, both) == ["SY450"]


# -- labels


def test_labels_that_are_not_shifted_and_shifted_twice_are_seen() -> None:
    model = Transformer(causal=True)
    unshifted = probed(model, language(), lambda m, b: token_loss(m(b["ids"]), b["labels"]))
    assert [(finding.code, finding.evidence["shift"]) for finding in unshifted.findings] == [("SY451", 0)]
    twice = probed(model, language(), lambda m, b: token_loss(m(b["ids"])[:, :-2], b["labels"][:, 2:]))
    assert [(finding.code, finding.evidence["shift"]) for finding in twice.findings] == [("SY451", 2)]


def test_a_transformers_model_that_shifts_labels_by_itself_wants_them_unshifted() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=WORDS, n_positions=32)
    model = transformers.GPT2LMHeadModel(config)

    def loss(m: nn.Module, b: Any) -> Tensor:
        return m(input_ids=b["input_ids"], labels=b["labels"]).loss

    ids = tokens()
    assert codes(model, {"input_ids": ids, "labels": ids.clone()}, loss) == []
    shifted = torch.cat([ids[:, 1:], torch.full((ROWS, 1), -100)], 1)
    assert codes(model, {"input_ids": ids, "labels": shifted}, loss) == ["SY451"]


def test_a_second_head_that_predicts_further_ahead_is_healthy() -> None:
    class TwoHeads(Transformer):
        def __init__(self) -> None:
            super().__init__(causal=True)
            self.head, self.one, self.two = nn.Identity(), nn.Linear(WIDTH, WORDS), nn.Linear(WIDTH, WORDS)

        def forward(self, ids: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
            states = super().forward(ids)
            return self.one(states), self.two(states)

    def loss(m: nn.Module, b: Any) -> Tensor:
        further, following = m(b["ids"])
        return token_loss(further[:, :-2], b["ids"][:, 2:]) + token_loss(following[:, :-1], b["ids"][:, 1:])

    assert codes(TwoHeads(), language(), loss) == []


def test_text_that_repeats_is_not_judged() -> None:
    model = Transformer(causal=True)
    constant = torch.arange(ROWS)[:, None].repeat(1, LENGTH)
    assert codes(model, language(constant), lambda m, b: token_loss(m(b["ids"]), b["labels"])) == []


def test_text_that_goes_round_in_circles_is_judged_by_where_it_begins() -> None:
    """Nearly every token is the one four before it, too; the first ones are not."""
    ids = tokens()
    ids[:, 6:] = ids[:, 2:6].repeat(1, LENGTH)[:, : LENGTH - 6]
    twice = probed(Transformer(causal=True), language(ids), lambda m, b: token_loss(m(b["ids"])[:, :-2], ids[:, 2:]))
    assert [(finding.code, finding.evidence["shift"]) for finding in twice.findings] == [("SY451", 2)]
    assert codes(Transformer(causal=True), language(ids), next_token) == []


def test_rows_without_labels_are_counted() -> None:
    batch = language()
    batch["labels"] = batch["ids"].clone()
    batch["labels"][:9] = -100
    found = probed(Transformer(causal=True), batch, next_token).findings
    assert [(finding.code, finding.evidence["share"]) for finding in found] == [("SY455", 0.75)]
    batch["labels"] = batch["ids"].clone()
    batch["labels"][:, :6] = -100  # prompts
    assert codes(Transformer(causal=True), batch, next_token) == []


# -- rows


def rows_loss(m: nn.Module, b: Any) -> Tensor:
    return F.cross_entropy(m(b["x"]), b["y"])


class LastState(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, WIDTH, batch_first=batch_first), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Attending(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


@pytest.mark.parametrize("kind", [LastState, Attending])
def test_layers_that_take_rows_for_time_steps_are_seen(kind: Any) -> None:
    batch = {"x": torch.randn(ROWS, 6, 8), "y": torch.randint(0, 3, (ROWS,))}
    assert codes(kind(batch_first=False), batch, rows_loss) == ["SY452"]
    assert codes(kind(batch_first=True), batch, rows_loss) == []


class Standardised(nn.Module):
    """Takes the statistics of the batch itself, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        return self.two((h - h.mean(0)) / (h.std(0) + 1e-5))


class Counting(nn.Module):
    """Gathers statistics of all it has seen, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.count += len(x)
            self.total += x.sum(0)
        return x - self.total / self.count


def test_batch_norm_and_time_first_batches_are_healthy() -> None:
    batch = {"x": torch.randn(ROWS, 8), "y": torch.randint(0, 3, (ROWS,))}
    assert codes(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)), batch, rows_loss) == []
    always = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, track_running_stats=False), nn.Linear(16, 3))
    assert codes(always, batch, rows_loss) == []
    assert codes(Standardised(), batch, rows_loss) == []
    assert codes(nn.Sequential(Counting(), nn.Linear(8, 3)), batch, rows_loss) == []
    time_first = {"ids": tokens(9, 4)}
    assert codes(Recurrent(), time_first, lambda m, b: token_loss(m(b["ids"])[:-1], b["ids"][1:])) == []


# -- padding


def padded(lengths: Tensor) -> tuple[Tensor, Tensor]:
    ids = tokens(len(lengths), LENGTH)
    mask = (torch.arange(LENGTH)[None] < lengths[:, None]).long()
    return ids * mask, mask


LENGTHS = torch.tensor([3, 4, 5, 6, 4, 3, 10, 5])


def test_padding_that_counts_is_seen_by_mask_lengths_and_tail() -> None:
    ids, mask = padded(LENGTHS)
    model = Transformer(causal=True)

    def loss(m: nn.Module, b: Any) -> Tensor:
        return token_loss(m(b["ids"])[:, :-1], b["ids"][:, 1:])

    for more, name in (({"mask": mask}, "mask"), ({"lengths": LENGTHS}, "lengths"), ({}, "token 0")):
        found = probed(model, {"ids": ids, **more}, loss).findings
        assert [(finding.code, finding.subject) for finding in found] == [("SY453", name)]


def test_padding_that_the_loss_leaves_out_is_healthy() -> None:
    ids, mask = padded(LENGTHS)

    def ignored(m: nn.Module, b: Any) -> Tensor:
        return token_loss(m(b["ids"])[:, :-1], b["ids"].masked_fill(b["mask"] == 0, -100)[:, 1:])

    def multiplied(m: nn.Module, b: Any) -> Tensor:
        each = F.cross_entropy(m(b["ids"])[:, :-1].transpose(1, 2), b["ids"][:, 1:], reduction="none")
        return (each * b["mask"][:, 1:]).sum() / b["mask"][:, 1:].sum()

    for loss in (ignored, multiplied):
        assert codes(Transformer(causal=True), {"ids": ids, "mask": mask}, loss) == []


def test_little_padding_and_segments_are_healthy() -> None:
    ids, mask = padded(torch.tensor([10, 9, 10, 9, 10, 10, 9, 10]))
    assert codes(Transformer(causal=True), {"ids": ids, "labels": ids, "mask": mask}, next_token) == []
    segments = (torch.arange(LENGTH)[None] >= LENGTHS[:, None]).long()
    ids = tokens(8)
    assert codes(Transformer(causal=True), {"ids": ids, "labels": ids, "segments": segments}, next_token) == []


def test_padded_time_series_are_seen_too() -> None:
    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(3, WIDTH, batch_first=True), nn.Linear(WIDTH, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0]).squeeze(-1)

    mask = (torch.arange(LENGTH)[None] < LENGTHS[:, None]).float()
    batch = {"x": torch.randn(8, LENGTH, 3) * mask[..., None], "y": torch.randn(8, LENGTH) * mask, "mask": mask}
    assert codes(Forecast(), batch, lambda m, b: F.mse_loss(m(b["x"]), b["y"])) == ["SY453"]
    masked = lambda m, b: ((m(b["x"]) - b["y"]) ** 2 * b["mask"]).sum() / b["mask"].sum()  # noqa: E731
    assert codes(Forecast(), batch, masked) == []


# -- every prediction with every target


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_that_does_not_mind_who_has_which_target_is_proven() -> None:
    batch = {"x": torch.randn(ROWS, 6), "y": torch.randn(ROWS)}
    assert codes(mlp(6, 16, 1), batch, lambda m, b: F.mse_loss(m(b["x"]), b["y"])) == ["SY441"]
    assert codes(mlp(6, 16, 1), batch, lambda m, b: F.mse_loss(m(b["x"]).squeeze(-1), b["y"])) == []


def test_a_square_of_rows_that_pairs_them_is_disproven() -> None:
    def loss(m: nn.Module, b: Any) -> Tensor:
        weights = torch.eye(ROWS)
        return ((m(b["x"]) - b["y"]) * weights).pow(2).sum()

    assert codes(mlp(6, 16, 1), {"x": torch.randn(ROWS, 6), "y": torch.randn(ROWS)}, loss) == []


# -- collapse


def _spreads(stopped: bool) -> list[float]:
    encoder, predictor = mlp(8, 32, 16), mlp(16, 16, 16)
    optimizer = torch.optim.Adam([*encoder.parameters(), *predictor.parameters()], lr=3e-2)
    found = []
    for _ in range(400):
        x = torch.randn(32, 8)
        one, two = encoder(x + 0.5 * torch.randn_like(x)), encoder(x + 0.5 * torch.randn_like(x))
        if stopped:
            loss = (predictor(one) - two.detach()).pow(2).mean() + F.relu(1 - one.std(0)).mean()
        else:
            loss = 1 - F.cosine_similarity(one, two).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        spread = representation_collapse.spread(one)
        assert spread is not None
        found.append(float(spread))
    return found


def test_an_encoder_that_collapses_is_seen_and_one_that_is_held_apart_is_not() -> None:
    inputs = shares = [1.0] * 400
    assert representation_collapse.judge("encoder", _spreads(stopped=False), inputs, shares) is not None
    assert representation_collapse.judge("encoder", _spreads(stopped=True), inputs, shares) is None


def test_narrow_outputs_few_rows_and_outputs_alike_from_the_start_are_not_judged() -> None:
    assert representation_collapse.spread(torch.randn(8, 4)) is None
    assert representation_collapse.spread(torch.randn(2, 64)) is None
    assert representation_collapse.judge("head", [0.001] * 8, [1.0] * 8, [1.0] * 8) is None


# -- live objects around the batch


def test_zero_rows_of_a_frozen_embedding_are_seen_in_the_batch() -> None:
    model = Transformer(causal=True)
    with torch.no_grad():
        model.embed.weight[::2] = 0
    assert codes(model, language(), next_token) == []
    model.embed.requires_grad_(False)
    assert codes(model, language(), next_token) == ["SY447"]


def test_a_reference_that_shares_all_weights_is_seen_though_it_is_no_part_of_the_model() -> None:
    model = mlp(6, 16, 4)
    shadow = mlp(6, 16, 4)
    for one, other in ((0, 0), (2, 2)):
        shadow[one].weight, shadow[one].bias = model[other].weight, model[other].bias

    def loss(teacher: nn.Module) -> Loss:
        def of(m: nn.Module, b: Tensor) -> Tensor:
            with torch.no_grad():
                wanted = teacher(b)
            return F.mse_loss(m(b), wanted + 1)

        return of

    assert codes(model, torch.randn(ROWS, 6), loss(shadow)) == ["SY448"]
    assert codes(model, torch.randn(ROWS, 6), loss(copy.deepcopy(model))) == []


# -- healthy trainings, and no trace


@pytest.mark.parametrize("make", healthy_models.ALL.values(), ids=healthy_models.ALL.keys())
def test_nothing_is_reported_about_a_healthy_training_and_no_bit_changes(make: Any) -> None:
    healthy = make()
    healthy.step()
    state = copy.deepcopy(healthy.model.state_dict())
    moments = copy.deepcopy([each.state_dict() for each in healthy.optimizers])
    grads = [None if p.grad is None else p.grad.clone() for p in healthy.model.parameters()]
    modes = [each.training for each in healthy.model.modules()]
    batch = copy.deepcopy(healthy.batch)
    rng = take_rng()
    found = probe_batch(LentStep(healthy.model, healthy.optimizers, healthy.loss, healthy.batch))
    assert found.findings == []
    assert not torch.nn.modules.module._has_any_global_hook()
    assert torch.equal(take_rng().cpu, rng.cpu)
    assert take_rng().python == rng.python
    assert all(torch.equal(value, state[name]) for name, value in healthy.model.state_dict().items())
    assert [None if p.grad is None else p.grad.tolist() for p in healthy.model.parameters()] == [
        None if grad is None else grad.tolist() for grad in grads
    ]
    assert [each.training for each in healthy.model.modules()] == modes
    for optimizer, before in zip(healthy.optimizers, moments, strict=True):
        assert str(optimizer.state_dict()) == str(before)
    assert str(healthy.batch) == str(batch)


def test_a_loss_that_raises_is_not_checked_and_does_not_raise() -> None:
    def loss(m: nn.Module, b: Any) -> Tensor:
        raise RuntimeError("no such file")

    found = probed(mlp(4, 4), torch.randn(3, 4), loss)
    assert found.findings == []
    assert found.not_checked == ["the first batch: RuntimeError: no such file"]


def test_a_model_that_cannot_run_in_evaluation_mode_is_not_checked() -> None:
    class OnlyTrains(Transformer):
        def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
            if not self.training:
                raise RuntimeError("generate with me instead")
            return super().forward(ids)

    found = probed(OnlyTrains(causal=False), language(), next_token)
    assert found.findings == []
    assert found.not_checked == ["predictions: the model's call cannot be repeated (RuntimeError)"]


def test_two_models_in_one_loss_are_not_taken_for_one() -> None:
    model = nn.ModuleDict({"one": mlp(6, 8), "two": mlp(6, 8)})
    found = probed(model, torch.randn(ROWS, 6), lambda m, b: (m["one"](b) - m["two"](b)).pow(2).mean())
    assert found.findings == []
    assert found.not_checked == ["predictions: the loss calls 2 models with gradients, and one can be probed"]


@pytest.mark.parametrize("causal", [True, False])
def test_the_step_of_a_guard_is_probed_and_training_goes_on_as_without(causal: bool) -> None:
    def train(probe: bool) -> tuple[list[str], list[Tensor]]:
        torch.manual_seed(0)
        model, batch = Transformer(causal), language()
        guard = sg.Guard(model, torch.optim.AdamW(model.parameters(), lr=1e-3), next_token)
        found: list[str] = []
        for number in range(4):
            if probe and number == 2:
                found = [finding.code for finding in probe_batch(_step_of(guard, batch)).findings]
            guard.step(batch)
        guard.close()
        return found, [p.detach().clone() for p in model.parameters()]

    found, weights = train(probe=True)
    _, expected = train(probe=False)
    assert found == ([] if causal else ["SY450"])
    assert all(torch.equal(one, other) for one, other in zip(weights, expected, strict=True))


def _step_of(guard: sg.Guard, batch: Any) -> GuardStep:
    loop: Any = guard._loop
    loop.settle()
    parts, window = loop.parts, Window()
    window.add(batch, "0", {}, parts.forward.take())
    return GuardStep(
        program=parts.program, forward=parts.forward, state=parts.state, window=window, step=loop.step,
        symptom="silent", findings=(), history=(), names={}, max_grad_norm=None,
    )  # fmt: skip


def test_a_mask_of_the_source_is_no_padding_of_the_predictions() -> None:
    pad = torch.arange(6)[None] >= torch.tensor([1, 4, 4, 3, 1])[:, None]
    assert padded_positions(pad, {"pad": pad}) is None
    assert padded_positions(pad.float(), {"pad": pad}) is None
    words = torch.randint(2, 20, (5, 6)).masked_fill(pad, 0)
    found = padded_positions(words, {"pad": pad})
    assert found is not None
    assert torch.equal(found[0], ~pad if bool(pad[:, 0].all()) else pad)
