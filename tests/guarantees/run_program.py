"""The program that the tests start under `steady run`: trains the scenarios of a file, one after another."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from instruments import instrumented, sampled
from scenario import Result, Scenario, collect, ended, make, plain_loop, write_json


def train(scenario: Scenario) -> Result:
    result = Result()
    it = make(scenario, leave_out=False)
    uncaught = None
    try:
        with instrumented(it, result):
            plain_loop(it)
    except Exception as error:
        ended(result, error)
        uncaught = None if scenario.catch else error
    collect(it, result)
    if uncaught is not None:
        write_json(Path(sys.argv[2]), [result.to_json()])
        raise uncaught
    return result


def main() -> None:
    torch.set_num_threads(1)
    answers = []
    for plain in json.loads(Path(sys.argv[1]).read_text()):
        scenario = Scenario.load(plain)
        many = scenario.breaks.startswith("sample:")
        answers += [r.to_json() for r in (sampled(scenario, train) if many else [train(scenario)])]
        write_json(Path(sys.argv[2]), answers)


if __name__ == "__main__":
    main()
