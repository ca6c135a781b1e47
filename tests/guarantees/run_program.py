"""The program that the tests start under `steady run`: trains the scenarios of a file, one after another."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from instruments import instrumented
from scenario import Result, Scenario, collect, ended, make, plain_loop, write_json


def main() -> None:
    torch.set_num_threads(1)
    answers = []
    for plain in json.loads(Path(sys.argv[1]).read_text()):
        scenario, result = Scenario.load(plain), Result()
        it = make(scenario, leave_out=False)
        uncaught = None
        try:
            with instrumented(it, result):
                plain_loop(it)
        except Exception as error:
            ended(result, error)
            uncaught = None if scenario.catch else error
        answers.append(collect(it, result).to_json())
        write_json(Path(sys.argv[2]), answers)
        if uncaught is not None:
            raise uncaught


if __name__ == "__main__":
    main()
