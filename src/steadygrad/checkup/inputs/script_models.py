"""Which model a script trains, and in which precision it was loaded, as far as the text tells."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .script import Script, keyword, last_word

OPTIMIZERS = re.compile(
    r"^(Adam\w*|SGD|Adafactor|RMSprop|NAdam|RAdam|Lion\w*|LAMB|Lamb|Adagrad|Adadelta|Muon|PagedAdam\w*)$"
)
TRAINS = re.compile(
    r"train(er)?$|^train_|^fit$|^learn$|^backward$|^step$|_step$|[Tt]rainer$|^get_peft_model$|^prepare$"
)
BORN_IN_BF16 = re.compile(r"(^|[/_\-])(m|um|flan-|by|long|code|flan_)?t5|gemma|(^|[/_\-])glm-?\d", re.IGNORECASE)
BORN_IN_BF16_TYPES = re.compile(r"^(m|um|long)?t5$|^gemma|^glm", re.IGNORECASE)
MAY_BE_HEALTHY = re.compile(
    r"deepspeed|fsdp|fullyshard|requires_grad|fp32|^hfargumentparser$|quanti|tuning|prefix|prompt|freeze|frozen",
    re.IGNORECASE,
)
"""Words of files in which half weights may have a float32 copy, or are frozen or quantized but for a part."""
SEQUENCE_WORDS = {
    "LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "Transformer", "TransformerEncoder",
    "TransformerEncoderLayer", "TransformerDecoder", "MultiheadAttention", "scaled_dot_product_attention",
    "AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM",
    "T5ForConditionalGeneration", "BertForMaskedLM",
}  # fmt: skip


def optimizer_calls(script: Script) -> Iterator[ast.Call]:
    """Every place that makes an optimizer."""
    for call in script.calls:
        name = script.dotted(call.func)
        if OPTIMIZERS.match(last_word(call.func)) or (name.startswith("torch.optim.") and name.count(".") == 2):
            yield call


def trained_expressions(script: Script) -> list[ast.expr]:
    """Everything whose parameters go into an optimizer or that a Trainer is given."""
    found: list[ast.expr] = []
    for call in optimizer_calls(script):
        for node in ast.walk(call):
            asks = isinstance(node, ast.Call) and last_word(node.func) in ("parameters", "named_parameters")
            if asks and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                found.append(node.func.value)
    for call in script.calls:
        if last_word(call.func).endswith("Trainer"):
            model = keyword(call, "model") or next(iter(call.args), None)
            if isinstance(model, ast.Name | ast.Attribute):
                found.append(model)
    return found


def made(script: Script, node: ast.expr, most: int = 6) -> tuple[Script, ast.expr]:
    """The expression that makes an object, and the file it stands in: behind names, attributes that a class sets,
    functions of this file that return it, and classes that this file imports from the files beside it."""
    for _ in range(most):
        nearer = _maker(script, node, most)
        if nearer is None:
            return script, node
        script, node = nearer
    return script, node


def _maker(script: Script, node: ast.expr, most: int) -> tuple[Script, ast.expr] | None:
    """One step nearer to where an object is made; None if the text shows no more."""
    if isinstance(node, ast.Name):
        value = script.value_of(node) or script.argument(node)
        return None if value is None else (script, value)
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            around, home = script.class_of(node), script
        else:
            if most <= 1:
                return None
            home, owner = made(script, node.value, most - 1)
            word = last_word(owner.func) if isinstance(owner, ast.Call) else ""
            home, around = home.defining(word)
        value = None if around is None else home.attribute(around, node.attr)
        return None if value is None else (home, value)
    given = script.returned_by(node)
    return None if given is None else (script, given)


def loaded_as(script: Script, dtype: str) -> Iterator[tuple[str, Script, ast.AST]]:
    """The trained models that are turned into `dtype` (float16, bfloat16), with the file and place of it."""
    trained = trained_expressions(script)
    names = {ast.unparse(node) for node in trained}
    seen: set[ast.AST] = set()
    for node in script.nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            name, value = ast.unparse(node.targets[0]), node.value
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            func = node.value.func
            name, value = (ast.unparse(func.value) if isinstance(func, ast.Attribute) else ""), node.value
        else:
            continue
        if name in names and casts_to(script, value, dtype):
            seen.add(value)
            if not _only_used_afterwards(script, node):
                yield name, script, node
    for node in trained:
        home, value = made(script, node)
        if value not in seen and casts_to(home, value, dtype):
            seen.add(value)
            yield ast.unparse(node), home, value


def _only_used_afterwards(script: Script, cast: ast.AST) -> bool:
    """Whether training is over where a model is cast: the function goes on without an optimizer, a trainer or a step,
    also in the functions of this file that it calls. The same name is then another model, which generates or is saved.
    """
    scope = script.scope(cast)
    below = [call for call in script.calls if script.scope(call) is scope and call.lineno >= getattr(cast, "lineno", 0)]
    if isinstance(scope, ast.FunctionDef) and any(_hands_out(node) for node in ast.walk(scope)):
        return False
    called = {last_word(call.func) for call in below}
    inner = {
        last_word(call.func)
        for node in script.nodes
        if isinstance(node, ast.FunctionDef) and node.name in called
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
    }
    return not any(TRAINS.search(word) or OPTIMIZERS.match(word) for word in called | inner)


def _hands_out(node: ast.AST) -> bool:
    """A return of something, or an attribute that is set: what a function makes may be trained elsewhere."""
    if isinstance(node, ast.Return):
        return node.value is not None
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)


def casts_to(script: Script, value: ast.expr, dtype: str) -> bool:
    """`....half()`, `....to(torch.float16)` at the end, or `from_pretrained(..., dtype=torch.float16)` in the chain."""
    node: ast.AST = value
    seen: set[ast.AST] = set()
    while isinstance(node, ast.Call) and node not in seen:
        seen.add(node)  # `model = get_peft_model(model, ...)` may lead back to itself
        word = last_word(node.func)
        if word == {"float16": "half", "bfloat16": "bfloat16"}[dtype] and not node.args:
            return True
        if word in ("float", "double"):
            return False
        if word == "to":
            given = [script.literal(each) for each in (*node.args, *(k.value for k in node.keywords))]
            if any(str(each) == f"torch.{dtype}" for each in given):
                return True
            if any(str(each) in ("torch.float32", "torch.float") for each in given):
                return False
        if word == "from_pretrained":
            if script.given(node, "quantization_config", "load_in_4bit", "load_in_8bit") is not None:
                return False
            given_dtype = script.literal(script.given(node, "torch_dtype", "dtype"))
            return str(given_dtype).removeprefix("torch.") in ({dtype, "half"} if dtype == "float16" else {dtype})
        if word == "get_peft_model" and node.args:
            node = made(script, node.args[0])[1]
            continue
        node = node.func.value if isinstance(node.func, ast.Attribute) else node.func
    return False


def may_keep_wide(script: Script) -> bool:
    """Whether half weights may well be healthy here: a framework, the command line or the file itself may bring a
    float32 copy of them, most of them may be frozen or quantized, or the file shows no training."""
    healthy = any(MAY_BE_HEALTHY.search(word) for word in script.words)
    return healthy or script.imports("apex") or not script.called & {"train", "fit", "step", "learn"}


def model_names(script: Script) -> set[str]:
    """The names of pretrained models that the script loads, where they are written in it."""
    found = {
        script.literal(call.args[0]) for call in script.calls if last_word(call.func) == "from_pretrained" and call.args
    }
    found |= {script.options.get(name) for name in ("model_name_or_path", "model_name", "model_id")}
    return {name for name in found if isinstance(name, str)}


def learning_rates(script: Script) -> Iterator[tuple[ast.Call, str, float]]:
    """Every optimizer with the learning rate written for it, or behind the option it takes."""
    for call in optimizer_calls(script):
        value = script.literal(keyword(call, "lr"))
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield call, last_word(call.func), float(value)


def trains_sequences(script: Script) -> bool:
    """A recurrent network or a transformer, judged by the words in the file."""
    return bool(script.words & SEQUENCE_WORDS)
