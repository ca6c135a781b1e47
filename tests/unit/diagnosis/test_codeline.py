"""The user's line with the remedy written into it."""

from __future__ import annotations

from steadygrad.diagnosis.remedies.suggested_line import with_bounds, with_floor


def test_a_denominator_gets_a_floor() -> None:
    assert with_floor("return (num / den).mean()  # why", "div") == "return (num / den.clamp_min(1e-06)).mean()"


def test_a_denominator_that_is_a_number_is_left_alone() -> None:
    assert with_floor("y = x / 2.0", "div") is None


def test_an_argument_of_a_function_gets_a_floor() -> None:
    assert with_floor("loss = -torch.log(p).mean()", "log") == "loss = -torch.log(p.clamp_min(1e-06)).mean()"


def test_a_method_call_gets_its_floor_in_front() -> None:
    assert with_floor("sd = (v + w).sqrt()", "sqrt") == "sd = (v + w).clamp_min(1e-06).sqrt()"


def test_an_argument_is_bounded_strictly_inside_its_domain() -> None:
    assert with_bounds("a = torch.acos(c)", "acos", -1.0, 1.0) == "a = torch.acos(c.clamp(-1 + 1e-06, 1 - 1e-06))"


def test_a_line_that_is_only_part_of_a_statement_is_not_rewritten() -> None:
    assert with_floor("loss = torch.log(", "log") is None
    assert with_floor(None, "log") is None


def test_a_count_is_at_least_one_and_a_float_divisor_keeps_a_small_floor() -> None:
    line = "loss = total / mask.sum(dim=1)"
    assert with_floor(line, "div", divisor="int64") == "loss = total / mask.sum(dim=1).clamp_min(1)"
    assert with_floor(line, "div", divisor="float16") == "loss = total / mask.sum(dim=1).clamp_min(1e-06)"
