"""Versions that are known to be wrong are reported where their condition holds, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.checkup import live_objects
from steadygrad.checkup.inputs.script import Script
from steadygrad.checkup.inputs.script_traits import traits_of_script
from steadygrad.checkup.live_objects import glance, measure
from steadygrad.checkup.rules.versions.known_bugs import known_bugs, matches, version_for
from steadygrad.records import rules


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Causal(Attention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


class Pool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1)
        return ((x**2).mean(1) - mean**2 + 1e-5).sqrt()


def codes(findings: Any) -> set[str]:
    return {found.code for found in findings if found.code.startswith("PF6")}


@pytest.mark.parametrize(
    ("found", "wanted", "is_in"),
    [
        ("2.11.0+cu130", ">=2.11", True),
        ("2.10.9", ">=2.11", False),
        ("2.12.0.dev20260501", "<2.12", False),
        ("2.9", "<2.12", True),
        ("4.47.1", ">=4.47,<4.48", True),
        ("4.48.0", ">=4.47,<4.48", False),
        ("", ">=2.0", False),
    ],
)
def test_versions_are_compared_by_their_numbers(found: str, wanted: str, is_in: bool) -> None:
    assert matches(found, wanted) is is_in


def test_every_entry_names_its_library_versions_links_and_cure_and_has_a_page() -> None:
    pages = {page.code: page for page in rules.pages()}
    assert len(known_bugs()) >= 7
    for rule in known_bugs():
        page = rules.page(rule.RULE.code)
        assert page == pages[rule.RULE.code]
        assert "https://" in page.sections["References"]
        assert "Versions: " in page.sections["What to do"]


def test_a_program_on_the_cpu_is_not_warned_of_bugs_of_a_gpu() -> None:
    model = Attention().bfloat16()
    assert codes(glance(model, torch.optim.AdamW(model.parameters()), precision="bf16")) == set()


def test_the_attention_of_cudnn_is_warned_of_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the device is cannot be had here, so its two traits are added to those that were found."""
    found = live_objects.live_traits

    def on_hopper(*args: Any, **kwargs: Any) -> frozenset[str]:
        return found(*args, **kwargs) | {"cuda", "hopper"}

    monkeypatch.setattr(live_objects, "live_traits", on_hopper)
    monkeypatch.setattr(live_objects, "versions", lambda: {"torch": "2.11.0+cu130"})
    model = Attention().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    assert codes(glance(model, optimizer)) == {"PF601"}
    with sg.Guard(model, optimizer, lambda m, b: m(b, None).sum()):
        assert "PF601" in caplog.text
        assert "enable_cudnn_sdp(False)" in caplog.text
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        assert codes(glance(model, optimizer)) == set()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
    causal = Causal().bfloat16()  # no mask is passed
    assert codes(glance(causal, torch.optim.AdamW(causal.parameters()))) == set()
    monkeypatch.setattr(live_objects, "versions", lambda: {"torch": "2.10.0"})
    assert codes(glance(model, optimizer)) == set()


def test_traits_are_read_off_live_objects() -> None:
    model = nn.Sequential(Attention(), Pool())
    assert "masked_attention" in measure(model).traits
    assert "variance_by_difference" not in measure(model).traits  # nothing is compiled
    model[1].compile(backend="eager")
    assert {"compiled", "variance_by_difference"} <= measure(model).traits
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    assert {"fused_sgd_momentum", "scaler", "unguarded"} <= measure(model, sgd, scaler=object()).traits
    assert "unguarded" not in measure(model, sgd, guarded=True).traits


def test_a_guard_handles_fused_sgd_and_does_not_warn_of_it() -> None:
    model = nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    assert "PF602" in codes(sg.doctor(model, sgd, scaler=object(), show=False).advice)
    assert "PF602" not in codes(glance(model, sgd, scaler=object()))


def test_a_pinned_version_counts_before_the_installed_one() -> None:
    assert version_for(Script("a.py", "# torch==2.4.1\nimport torch"), "torch") == "2.4.1"
    assert version_for(Script("a.py", "import torch"), "torch") == str(torch.__version__)
    assert version_for(Script("a.py", "import x"), "a_library_that_is_not_installed") == ""


def test_a_script_without_any_of_it_has_no_such_trait() -> None:
    script = Script("a.py", "import torch\nmodel = torch.nn.Linear(2, 2)\n")
    assert traits_of_script(script).keys() == {"cudnn_attention"}  # allowed by default, and not enough by itself
