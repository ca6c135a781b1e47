"""The prevention checklist of a run that turned NaN: each line is found in every form in which it can be written.

Forms: a script, a function, a class, a nested and a flat YAML, TrainingArguments. A line about the loop cannot be
written into a configuration, and a line about a setting of the Trainer cannot be written into a bare loop.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from steadygrad.checkup.doctor import doctor_files

BODY = """
model = torch.nn.Transformer()
loader = DataLoader(data, batch_size={batch})
optimizer = torch.optim.AdamW(model.parameters(), lr={lr})
{warm}
for step, (x, mask, latent_target) in enumerate(loader):
    optimizer.zero_grad()
    latent_pred = model(x)
    loss = (latent_pred * mask).sum() / {divisor}
    loss = loss + F.mse_loss({latents})
    loss.backward()
    {clip}
    optimizer.step()
{save}
"""
IMPORTS = "import torch\nimport torch.nn.functional as F\nfrom torch.utils.data import DataLoader\n"
BAD = {
    "batch": "2", "lr": "0.01", "warm": "", "divisor": "mask.sum()", "latents": "latent_pred, latent_target",
    "clip": "", "save": "",
}  # fmt: skip
GOOD = {
    "batch": "32", "lr": "5e-5", "warm": "warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01)",
    "divisor": "mask.sum().clamp(min=1)",
    "latents": "F.normalize(latent_pred, dim=-1), F.normalize(latent_target, dim=-1)",
    "clip": "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n    if not torch.isfinite(norm): continue",
    "save": "torch.save(model.state_dict(), 'x')",
}  # fmt: skip
OF_LOOPS = {
    "learning rate": "PF209", "clipping": "PF204", "loss checked": "PF309", "divisions": "PF403", "latents": "PF411",
    "warm-up": "PF208", "accumulation": "PF214", "norms monitored": "PF309", "checkpoints": "PF309",
    "recovery": "PF309",
}  # fmt: skip
OF_SETTINGS = {
    "learning rate": "PF209", "clipping": "PF204", "warm-up": "PF208", "accumulation": "PF214",
    "norms monitored": "PF309", "checkpoints": "PF304",
}  # fmt: skip


def script(values: dict[str, str]) -> str:
    return IMPORTS + BODY.format(**values)


def function(values: dict[str, str]) -> str:
    lr, values = values["lr"], {**values, "lr": "lr"}
    return IMPORTS + f"def train(data, lr={lr}):\n" + textwrap.indent(BODY.format(**values), "    ") + "\ntrain(data)\n"


def in_class(values: dict[str, str]) -> str:
    lr, values = values["lr"], {**values, "lr": "self.lr"}
    head = f"class Training:\n    def __init__(self, lr={lr}):\n        self.lr = lr\n    def train(self, data):\n"
    return IMPORTS + head + textwrap.indent(BODY.format(**values), "        ") + "\nTraining().train(data)\n"


@pytest.mark.parametrize("form", [script, function, in_class])
def test_every_line_of_the_checklist_is_found_in_a_loop(tmp_path: Path, form: object) -> None:
    path = tmp_path / "train.py"
    path.write_text(form(BAD))  # type: ignore[operator]
    found = doctor_files([path]).advice
    assert set(OF_LOOPS.values()) <= {each.code for each in found}
    (unwatched,) = [each.detail for each in found if each.code == "PF309"]
    for words in ("checks the loss before backward", "reads the gradient norm", "saves a checkpoint", "go back"):
        assert words in unwatched


@pytest.mark.parametrize("form", [script, function, in_class])
def test_a_loop_that_keeps_the_checklist_has_no_finding(tmp_path: Path, form: object) -> None:
    path = tmp_path / "train.py"
    path.write_text(form(GOOD))  # type: ignore[operator]
    assert [(each.code, each.detail) for each in doctor_files([path]).advice] == []


NESTED = """
optimizer:
  lr: {lr}
  grad_clip_norm: {clip}
training:
  warmup_steps: {warm}
  dtype: bf16
  train_batch_size: 4
  gradient_accumulation_steps: {accumulation}
  save_steps: {save}
  log_every: {log}
"""
FLAT = """
learning-rate: {lr}
max_norm: 7
clip_grad: {clip}
num_warmup_steps: {warm}
dtype: bf16
batch_size: 4
grad_accum_steps: {accumulation}
save_interval: {save}
log_interval: {log}
"""
ARGUMENTS = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("x")
args = TrainingArguments(
    output_dir="x", learning_rate={lr}, max_grad_norm={clip}, warmup_steps={warm}, per_device_train_batch_size=4,
    gradient_accumulation_steps={accumulation}, save_steps={save}, logging_steps={log}, logging_nan_inf_filter=False,
)
Trainer(model=model, args=args).train()
"""
BAD_VALUES = {"lr": "0.01", "clip": "0", "warm": "0", "accumulation": "1", "save": "50000", "log": "5000"}
GOOD_VALUES = {"lr": "0.00005", "clip": "0.5", "warm": "2000", "accumulation": "4", "save": "1000", "log": "10"}
FORMS = [("run.yaml", NESTED), ("run.yaml", FLAT), ("train.py", ARGUMENTS)]


@pytest.mark.parametrize(("name", "text"), FORMS, ids=["nested", "flat", "TrainingArguments"])
def test_every_line_of_the_checklist_that_is_a_setting_is_found(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text.format(**BAD_VALUES))
    assert set(OF_SETTINGS.values()) <= {each.code for each in doctor_files([path]).advice}


@pytest.mark.parametrize(("name", "text"), FORMS, ids=["nested", "flat", "TrainingArguments"])
def test_settings_that_keep_the_checklist_have_no_finding(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text.format(**GOOD_VALUES))
    assert [(each.code, each.detail) for each in doctor_files([path]).advice] == []


COMPUTE_LOSS = """
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
class Latents(Trainer):
    def compute_loss(self, model, inputs, **named):
        latent_pred, loss_mask = model(inputs), inputs["loss_mask"]
        return (latent_pred * loss_mask).sum() / {divisor} + F.mse_loss({latents})
"""
FROM_FILE = """
import yaml
config = yaml.safe_load(open("run.yaml"))
"""


@pytest.mark.parametrize("text", [NESTED, FLAT], ids=["nested", "flat"])
def test_a_configuration_and_the_loop_that_reads_it_show_every_line(tmp_path: Path, text: str) -> None:
    read = {"lr": 'config["lr"]', "batch": 'config["batch_size"]'}
    (tmp_path / "train.py").write_text(FROM_FILE + script({**BAD, **read}))
    (tmp_path / "run.yaml").write_text(text.format(**BAD_VALUES))
    found = {each.code for each in doctor_files([tmp_path]).advice}
    assert set(OF_LOOPS.values()) | set(OF_SETTINGS.values()) <= found
    (tmp_path / "train.py").write_text(FROM_FILE + script({**GOOD, **read}))
    (tmp_path / "run.yaml").write_text(text.format(**GOOD_VALUES))
    assert doctor_files([tmp_path]).advice == ()


def test_a_trainer_with_its_own_loss_shows_every_line(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    loss = {"divisor": "loss_mask.sum()", "latents": 'latent_pred, inputs["latents"]'}
    path.write_text(COMPUTE_LOSS.format(**loss) + ARGUMENTS.format(**BAD_VALUES))
    found = {each.code for each in doctor_files([path]).advice}
    assert {"PF403", "PF411", *OF_SETTINGS.values()} <= found
    loss = {"divisor": "loss_mask.sum().clamp(min=1)", "latents": 'F.normalize(latent_pred), F.normalize(inputs["x"])'}
    path.write_text(COMPUTE_LOSS.format(**loss) + ARGUMENTS.format(**GOOD_VALUES))
    assert [(each.code, each.detail) for each in doctor_files([path]).advice] == []
