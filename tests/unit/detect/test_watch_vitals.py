"""Vitals on small real models: silent failures are named, healthy runs that look strange are not."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from steadygrad.detect.sampled import StepSampler
from steadygrad.detect.sampled.activation_probe import ActivationProbe
from steadygrad.policy import Policy
from steadygrad.records import Finding, Severity

POLICY = Policy.named("balanced")
Loss = Callable[[nn.Module, Tensor], Tensor]


def mlp(width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))


def square(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch).float() - batch.sum(-1, keepdim=True)).pow(2).mean()


def batches(count: int = 12, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 8, generator=generator).to(dtype) for _ in range(count)]


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Loss = square,
    *,
    data: list[Tensor] | None = None,
    autocast: torch.dtype | None = None,
    after: Callable[[], None] = lambda: None,
    vitals: StepSampler | None = None,
) -> list[Finding]:
    """A plain training loop with vitals around its sampled steps."""
    vitals = vitals or StepSampler(model, [optimizer], POLICY)
    found = list(vitals.inspect_setup())
    for step, batch in enumerate(data or batches()):
        due = vitals.due(step)
        if due:
            vitals.before_forward()
        context: AbstractContextManager[object] = torch.autocast("cpu", autocast) if autocast else nullcontext()
        with context:
            loss = loss_fn(model, batch)
        optimizer.zero_grad()
        loss.backward()
        if due:
            vitals.before_update()
        optimizer.step()
        after()
        if due:
            vitals.after_update()
            found += vitals.findings(step, loss=float(loss.detach()))
    return found


def codes(found: list[Finding]) -> list[str]:
    return [finding.code for finding in found if finding.severity is not Severity.NOTE]


class Adapter(nn.Module):
    """A frozen linear layer with a low-rank correction whose second half starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.up(self.down(x))
        return y


class Words(nn.Module):
    """An embedding with many unused rows, tied to the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 500, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(self.embed(ids)))
        return y


class TestHealthyRuns:
    def test_a_plain_run_is_silent(self) -> None:
        model = mlp()
        assert watch(model, torch.optim.AdamW(model.parameters(), lr=1e-2)) == []

    def test_a_frozen_backbone_is_silent(self) -> None:
        model = mlp()
        model[0].requires_grad_(False)
        assert watch(model, torch.optim.AdamW(model[2].parameters(), lr=1e-2)) == []

    def test_frozen_parameters_inside_the_optimizer_are_silent(self) -> None:
        model = mlp()
        model[0].requires_grad_(False)
        assert watch(model, torch.optim.AdamW(model.parameters(), lr=1e-2)) == []

    @pytest.mark.parametrize("autocast", [None, torch.bfloat16])
    def test_an_adapter_that_starts_at_zero_is_silent(self, autocast: torch.dtype | None) -> None:
        model = nn.Sequential(Adapter(), nn.Tanh(), Adapter())
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        found = watch(
            model,
            torch.optim.AdamW(trainable, lr=1e-3),
            lambda m, b: (m(b).float() - b).pow(2).mean(),
            autocast=autocast,
        )
        assert found == []

    def test_tied_weights_and_unused_rows_are_silent(self) -> None:
        model = Words()
        data = [torch.randint(0, 20, (4, 5), generator=torch.Generator().manual_seed(i)) for i in range(12)]
        found = watch(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            lambda m, ids: F.cross_entropy(m(ids).flatten(0, 1), ids.flatten()),
            data=data,
        )
        assert found == []

    def test_batches_with_a_zero_loss_are_silent(self) -> None:
        model = mlp()
        found = watch(
            model,
            torch.optim.AdamW(model.parameters(), lr=1e-3),
            lambda m, b: F.relu(m(b) - 1e6).mean(),
            autocast=torch.float16,
        )
        assert found == []

    def test_a_warm_up_from_a_learning_rate_of_zero_is_silent(self) -> None:
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, max(0, step - 6) / 100))
        assert watch(model, optimizer, after=schedule.step) == []

    def test_bfloat16_autocast_over_float32_weights_is_silent(self) -> None:
        model = mlp()
        assert watch(model, torch.optim.AdamW(model.parameters(), lr=1e-4), autocast=torch.bfloat16) == []

    def test_infinities_inside_a_mask_are_silent(self) -> None:
        class Masked(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scores, self.mask = nn.Linear(8, 8), nn.Identity()

            def forward(self, x: Tensor) -> Tensor:
                masked = self.mask(self.scores(x).masked_fill(torch.eye(8)[0].bool(), -torch.inf))
                return masked.softmax(-1).sum(-1, keepdim=True) * self.scores(x)

        model = Masked()
        assert watch(model, torch.optim.AdamW(model.parameters(), lr=1e-3)) == []


class TestSilentFailures:
    def test_gradients_that_flush_to_zero_in_float16_are_named(self) -> None:
        model = nn.ModuleDict({"rays": mlp(), "depth": mlp()})

        def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
            assert isinstance(model, nn.ModuleDict)
            return square(model["depth"], batch) + 1e-9 * square(model["rays"], batch)

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        found = watch(model, optimizer, loss_fn, autocast=torch.float16)
        assert codes(found) == ["SY401"]
        assert all(name.startswith("rays.") for name in found[0].evidence["names"])

    def test_the_same_loss_in_bfloat16_is_silent(self) -> None:
        model = nn.ModuleDict({"rays": mlp(), "depth": mlp()})

        def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
            assert isinstance(model, nn.ModuleDict)
            return square(model["depth"], batch) + 1e-9 * square(model["rays"], batch)

        assert watch(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss_fn, autocast=torch.bfloat16) == []

    def test_a_loss_whose_every_gradient_flushes_to_zero_is_named(self) -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        found = watch(model, optimizer, lambda m, b: 1e-9 * square(m, b), autocast=torch.float16)
        assert codes(found) == ["SY401"]
        assert found[0].evidence["num_names"] == 4

    def test_updates_lost_to_bfloat16_weights_are_named(self) -> None:
        model = mlp().to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
        found = watch(model, optimizer, data=batches(dtype=torch.bfloat16))
        assert codes(found) == ["SY402"]
        assert "0.weight" in found[0].evidence["names"]

    def test_bfloat16_weights_with_a_large_enough_step_are_silent(self) -> None:
        model = mlp().to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2, weight_decay=0.0)
        assert watch(model, optimizer, data=batches(dtype=torch.bfloat16)) == []

    def test_an_epsilon_that_is_zero_in_float16_is_named_before_the_first_step(self) -> None:
        model = mlp().to(torch.float16)
        optimizer = torch.optim.AdamW(model.parameters(), eps=1e-8)
        found = StepSampler(model, [optimizer], POLICY).inspect_setup()
        assert codes(list(found)) == ["SY403"]
        assert "eps=1e-08, which is 0 in float16" in found[0].detail
        larger = torch.optim.AdamW(model.parameters(), eps=1e-4)
        assert StepSampler(model, [larger], POLICY).inspect_setup() == ()

    def test_a_narrow_optimizer_state_is_named_after_it_was_loaded(self) -> None:
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        square(model, batches(1)[0]).backward()
        optimizer.step()
        vitals = StepSampler(model, [optimizer], POLICY)
        assert vitals.inspect_setup() == ()
        for state in optimizer.state.values():
            state["exp_avg_sq"] = state["exp_avg_sq"].half()
        assert codes(list(vitals.inspect_setup())) == ["SY403"]

    @pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
    @pytest.mark.parametrize(("reentrant", "expected"), [(True, ["SY404"]), (False, [])])
    def test_adapters_behind_a_cut_graph_are_named(self, reentrant: bool, expected: list[str]) -> None:
        class Checkpointed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.block, self.head = Adapter(), nn.Linear(8, 1)

            def forward(self, x: Tensor) -> Tensor:
                y: Tensor = self.head(checkpoint(self.block, x, use_reentrant=reentrant))
                return y

        model = Checkpointed()
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        found = watch(model, torch.optim.AdamW(trainable, lr=1e-3))
        assert codes(found) == expected
        if expected:
            assert found[0].evidence["names"] == ["block.down.weight", "block.up.weight"]
            assert "though their modules ran" in found[0].detail

    def test_a_module_that_is_never_called_is_only_a_note(self) -> None:
        model = nn.ModuleDict({"body": mlp(), "pooler": nn.Linear(8, 8)})

        def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
            assert isinstance(model, nn.ModuleDict)
            return square(model["body"], batch)

        found = watch(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss_fn)
        assert [(finding.code, finding.severity) for finding in found] == [("SY404", Severity.NOTE)]

    def test_a_layer_replaced_after_the_optimizer_was_built_is_named(self) -> None:
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model[2] = nn.Linear(16, 1)
        found = watch(model, optimizer)
        assert found[0].code == "SY405"
        assert found[0].evidence["names"] == ["2.weight", "2.bias"]

    def test_a_stale_parameter_left_in_the_optimizer_is_only_a_note(self) -> None:
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model[2] = nn.Linear(16, 1)
        optimizer.add_param_group({"params": list(model[2].parameters())})
        assert codes(watch(model, optimizer)) == []

    def test_weights_that_something_resets_are_named(self) -> None:
        model = mlp()
        start = model[0].weight.detach().clone()

        def reset() -> None:
            with torch.no_grad():
                model[0].weight.copy_(start)

        found = watch(model, torch.optim.AdamW(model.parameters(), lr=1e-3), after=reset)
        assert codes(found) == ["SY406"]
        assert found[0].evidence["names"] == ["0.weight"]

    def test_a_learning_rate_that_replaces_the_weights_is_named(self) -> None:
        model = mlp()
        assert "SY407" in codes(watch(model, torch.optim.AdamW(model.parameters(), lr=5.0)))

    def test_activations_near_the_end_of_float16_are_named(self) -> None:
        model = mlp()
        with torch.no_grad():
            model[0].weight.mul_(30000)
        found = watch(model, torch.optim.AdamW(model.parameters(), lr=1e-3), autocast=torch.float16)
        assert "SY408" in codes(found)
        named = next(finding for finding in found if finding.code == "SY408")
        assert named.subject == "0"
        assert 16376 < named.evidence["absmax"] < 65504

    def test_the_same_trouble_is_told_once(self) -> None:
        model = mlp().to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
        vitals = StepSampler(model, [optimizer], POLICY.but(vitals_every=1))
        found = watch(model, optimizer, data=batches(30, torch.bfloat16), vitals=vitals)
        subjects = [(finding.code, finding.subject) for finding in found]
        assert len(subjects) == len(set(subjects))


class TestManners:
    def test_a_sampled_run_is_bit_identical_to_an_unsampled_one(self) -> None:
        weights = []
        for sampled in (True, False):
            torch.manual_seed(3)
            model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            policy = POLICY.but(vitals_every=1 if sampled else 10**9)
            vitals = StepSampler(model, [optimizer], policy)
            if not sampled:
                vitals.due = lambda step: False  # type: ignore[method-assign]
            watch(model, optimizer, data=batches(20), vitals=vitals)
            weights.append([*model.state_dict().values()])
        assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))

    def test_no_hook_stays_on_the_model(self) -> None:
        model = mlp()
        watch(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
        assert all(not module._forward_hooks for module in model.modules())

    def test_discarding_takes_the_hooks_off(self) -> None:
        model = mlp()
        vitals = StepSampler(model, [torch.optim.AdamW(model.parameters())], POLICY)
        vitals.before_forward()
        assert any(module._forward_hooks for module in model.modules())
        vitals.discard()
        assert all(not module._forward_hooks for module in model.modules())

    def test_a_compiled_model_gets_no_hooks(self) -> None:
        model = torch.compile(mlp(), backend="eager")
        vitals = StepSampler(model, [torch.optim.AdamW(model.parameters())], POLICY)
        vitals.before_forward()
        assert all(not module._forward_hooks for module in model.modules())

    def test_a_refused_step_says_nothing_and_is_not_remembered(self) -> None:
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        vitals = StepSampler(model, [optimizer], POLICY)
        for step, batch in enumerate(batches(12)):
            square(model, batch).backward()
            vitals.before_update()
            vitals.after_update()  # nothing moved: the update was refused
            assert vitals.findings(step, applied=False) == ()
        assert len(vitals._samplings) == 0

    def test_non_finite_gradients_enter_no_sampling(self) -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        vitals = StepSampler(model, [optimizer], POLICY)
        (square(model, batches(1)[0]) * torch.nan).backward()
        vitals.before_update()
        vitals.after_update()
        assert vitals.findings(0) == ()
        assert len(vitals._samplings) == 0

    def test_a_step_may_be_settled_after_the_next_has_begun(self) -> None:
        model = mlp()
        with torch.no_grad():
            model[0].weight.mul_(1e20)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        vitals = StepSampler(model, [optimizer], POLICY)
        for step, batch in enumerate(batches(3)):
            vitals.before_forward()
            model(batch).sum().backward()
            if step:
                late = vitals.findings(step - 1)
                assert [finding.code for finding in late] == (["SY408"] if step == 1 else [])
            vitals.before_update()
            optimizer.step()
            vitals.after_update()
        assert [sampling.step for sampling in vitals._samplings] == [0, 1]
        assert all(len(sampling.activations) == 4 for sampling in vitals._samplings)

    def test_only_a_slice_of_each_weight_is_kept(self) -> None:
        model = nn.Linear(1000, 1000)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        vitals = StepSampler(model, [optimizer], POLICY.but(vitals_sample=512))
        model(torch.randn(2, 1000)).sum().backward()
        vitals.before_update()
        assert vitals._open is not None
        assert sum(group.before.numel() for group in vitals._open.measurement.groups) == 512 + 500
        optimizer.step()
        vitals.after_update()
        vitals.findings(0)
        # At most so many, and to the very end: every second of a thousand.
        assert [tensor.num_sampled for tensor in vitals._samplings[-1].tensors] == [512, 500]

    def test_the_slice_reaches_the_end_of_a_weight_that_is_a_little_longer(self) -> None:
        model = nn.Linear(1, 768, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        vitals = StepSampler(model, [optimizer], POLICY.but(vitals_sample=512))
        model(torch.ones(1, 1))[:, 512:].sum().backward()  # only the last third learns
        vitals.before_update()
        optimizer.step()
        vitals.after_update()
        vitals.findings(0)
        (weight,) = vitals._samplings[-1].tensors
        assert (weight.num_live, weight.num_moved) == (128, 128)

    def test_nothing_is_said_of_weights_that_stand_still_while_the_rate_grows_or_in_the_first_updates(
        self,
    ) -> None:
        model = nn.Linear(8, 8, bias=False)
        with torch.no_grad():
            model.weight.fill_(1.0)
        for rates, steps, codes in (
            ((1e-12, 1e-11, 1e-10), (1, 2, 5), set()),
            ((1e-12, 1e-12, 1e-12), (1, 2, 5), {"SY406", "SY407"}),
            ((1e-12, 1e-12, 1e-12), (0, 1, 2), set()),  # an optimizer may begin after some updates
        ):
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            vitals = StepSampler(model, [optimizer], POLICY)
            said: set[str] = set()
            for step, rate in zip(steps, rates, strict=True):
                optimizer.param_groups[0]["lr"] = rate
                model(torch.ones(2, 8)).sum().backward()
                vitals.before_update()
                optimizer.step()
                vitals.after_update()
                said |= {finding.code for finding in vitals.findings(step)}
                optimizer.zero_grad()
            assert said == codes

    def test_numbers_agree_with_a_plain_computation(self) -> None:
        model = mlp().to(memory_format=torch.contiguous_format)
        conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        both = nn.ModuleDict({"mlp": model, "conv": conv})
        optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
        vitals = StepSampler(both, [optimizer], POLICY.but(vitals_sample=10**6))
        loss = square(model, batches(1)[0]) + conv(torch.randn(2, 3, 5, 5)).pow(2).mean()
        loss.backward()
        before = {name: parameter.detach().clone() for name, parameter in both.named_parameters()}
        vitals.before_update()
        optimizer.step()
        vitals.after_update()
        vitals.findings(0)
        seen = {tensor.name: tensor for tensor in vitals._samplings[-1].tensors}
        assert len(seen) == 6
        for name, parameter in both.named_parameters():
            assert parameter.grad is not None
            tensor = seen[name]
            assert tensor.weight_norm == pytest.approx(float(before[name].norm()), rel=1e-5)
            assert tensor.update_norm == pytest.approx(float((parameter.detach() - before[name]).norm()), rel=1e-4)
            assert tensor.grad_absmax == pytest.approx(float(parameter.grad.abs().max()), rel=1e-6)
            assert tensor.num_live == int((parameter.grad != 0).sum())
            assert tensor.num_moved == int(((parameter.detach() != before[name]) & (parameter.grad != 0)).sum())

    def test_the_schedule_is_dense_at_first_and_then_sparse(self) -> None:
        model = mlp()
        vitals = StepSampler(model, [torch.optim.AdamW(model.parameters())], POLICY)
        assert [step for step in range(1000) if vitals.due(step)] == [0, 1, 2, 5, 10, 200, 400, 600, 800]


@pytest.mark.gpu
def test_on_cuda_nothing_synchronises_until_the_findings() -> None:
    model = mlp().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    vitals = StepSampler(model, [optimizer], POLICY)
    data = [batch.cuda() for batch in batches(3)]
    for step, batch in enumerate(data):
        torch.cuda.set_sync_debug_mode("error")
        try:
            vitals.before_forward()
            square(model, batch).backward()
            vitals.before_update()
            optimizer.step()
            vitals.after_update()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert vitals.findings(step) == ()
    assert len(vitals._samplings) == 3


def test_a_model_saved_while_it_is_sampled_can_be_loaded_where_steadygrad_is_not_installed() -> None:
    model = nn.Linear(2, 1)
    probe = ActivationProbe(model)
    probe.attach()
    saved = pickle.dumps(model)
    probe.detach()
    assert b"steadygrad" not in saved
    loaded = pickle.loads(saved)
    assert torch.equal(loaded(torch.ones(1, 2)), model(torch.ones(1, 2)))


@pytest.mark.parametrize("every", [1, 3, 7, 200])
def test_no_step_that_is_due_lies_before_the_next_one(every: int) -> None:
    model = nn.Linear(2, 1)
    vitals = StepSampler(model, [torch.optim.SGD(model.parameters())], POLICY.but(vitals_every=every))
    for step in range(420):
        assert vitals.next_due(step) == next(later for later in range(step + 1, 1000) if vitals.due(later))
