"""A squared error on latents or embeddings of any scale.

What it sees
    `mse_loss` between tensors that by name are latents, embeddings, hidden states or features, neither of which was
    normalised.

Why it hurts
    The loss and its gradient grow with the square of the latents' scale, which another encoder or a longer training
    changes by orders of magnitude. In float16 a difference beyond 255 overflows when it is squared.

Smallest example
    latent_loss = F.mse_loss(latent_pred, latent_target)
    # fixed
    latent_loss = F.mse_loss(F.normalize(latent_pred, dim=-1), F.normalize(latent_target, dim=-1))

What to do
    Normalise both (`F.normalize(x, dim=-1)` or `F.layer_norm`), or standardise the targets once with the mean and
    deviation of the data.

Safety
    A note, judged by names: latents that were standardised in another file are healthy. Normalising changes what is
    learnt: lengths are no longer compared.

References
    https://arxiv.org/abs/2112.10752
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loss_expressions import bare, names_in
from ...inputs.script import Script

RULE = Rule("PF411", "regression_on_latents", "A squared error on latents or embeddings of any scale.")
KINDS = ("latent", "embed", "hidden_state", "feature")
SCALED = ("norm", "standard", "scale", "whiten", "tanh", "sigmoid", "softmax", "unit")


def of_script(script: Script) -> Iterator[Advice]:
    """Both sides must be of such a name; any word of scaling near them is a sign that it was thought of."""
    for call in script.calls:
        op = script.op(call)
        if op is None or op.name != "mse_loss" or not op.of_torch or len(call.args) < 2 or script.untracked(call):
            continue
        sides = call.args[:2]
        if all(_is_latent(side) and not _is_scaled(script, side) for side in sides):
            yield at(
                RULE, Level.NOTE, script, call, "a squared error of latents depends on the square of their scale",
                help="normalise both sides first, such as with torch.nn.functional.normalize",
            )  # fmt: skip


def _is_latent(node: ast.expr) -> bool:
    """By a name, or by the key it is read with: `batch["latents"]`."""
    keys = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return any(kind in word.lower() for word in names_in(node) | keys for kind in KINDS)


def _is_scaled(script: Script, node: ast.expr) -> bool:
    origin = bare(script, node)
    words = names_in(node) | (names_in(origin) if origin is not None else set())
    return any(part in word.lower() for word in words for part in SCALED)


SPECIMENS = [
    "import torch.nn.functional as F\ndef loss(latent_pred, x):\n    return F.mse_loss(latent_pred, x['latents'])\n",
    """
import torch.nn.functional as F
def loss(latent_pred, latent_target):
    return F.mse_loss(latent_pred, latent_target)
""",
]
NEAR_MISSES = [
    """
import torch.nn.functional as F
def loss(latent_pred, latent_target):
    latent_pred, target = F.normalize(latent_pred, dim=-1), F.normalize(latent_target, dim=-1)
    return F.mse_loss(latent_pred, target)
""",
    "import torch.nn.functional as F\ndef loss(noise_pred, noise):\n    return F.mse_loss(noise_pred, noise)\n",
    """
import torch.nn.functional as F
def loss(latent_pred, latent_target):
    latents = F.layer_norm(latent_pred, latent_pred.shape[-1:])
    return F.mse_loss(latents, F.layer_norm(latent_target, latent_target.shape[-1:]))
""",
]
