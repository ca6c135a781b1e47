"""What a program keeps beside its weights, in its own objects and outside of the process."""

from __future__ import annotations

import csv
import itertools
import queue
import random
import shutil
import sqlite3
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Keeper:
    """What can be restored, or held while a step is run again."""

    def __init__(self) -> None:
        self.number, self.collected = 0, []  # type: ignore[var-annotated]
        self.table, self.queue = np.zeros(4), torch.zeros(4)
        self.torchs, self.pythons = torch.Generator().manual_seed(5), random.Random(5)
        self.folder = Path(tempfile.mkdtemp())
        (self.folder / "prompts").write_text("".join(f"{n * 37 % 11}\n" for n in range(200)))
        self.log, self.rows = open(self.folder / "log", "w"), open(self.folder / "rows", "w", newline="")  # noqa: SIM115
        self.table_of_rows, self.prompts = csv.writer(self.rows), open(self.folder / "prompts")  # noqa: SIM115
        self.serial, self.names, self.bag = itertools.count(100), itertools.cycle("abc"), deque(range(200))
        self.said: list[Any] = []

    def note(self) -> None:
        self.number += 1
        self.collected.append(self.number)
        self.table[self.number % 4] = self.queue[self.number % 4] = self.number
        torch.rand(1, generator=self.torchs)
        self.pythons.random()
        self.log.write(f"{self.number}\n")
        self.table_of_rows.writerow([self.number, next(self.names)])
        with open(self.folder / "appended", "a") as appended:
            appended.write(f"{self.number}\n")
        torch.save(self.number, self.folder / "saved")
        self.said.append([next(self.serial), self.bag.popleft(), self.prompts.readline()])

    def state(self) -> list[Any]:
        drawn = [torch.rand(1, generator=self.torchs).item(), self.pythons.random()]
        held = [self.said, next(self.serial), next(self.names), self.bag[0], self.prompts.tell()]
        self.log.close(), self.rows.close(), self.prompts.close()
        files = {path.name: path.read_text(errors="replace") for path in sorted(self.folder.iterdir())}
        files["saved"] = str(torch.load(self.folder / "saved"))
        shutil.rmtree(self.folder)
        return [self.number, len(self.collected), self.table.tolist(), self.queue.tolist(), drawn, held, files]


class Outside(Keeper):
    """What no one can restore: a database, a queue whose other end is a thread, a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.database = sqlite3.connect(self.folder / "database", check_same_thread=False)
        self.database.execute("create table calls (number integer primary key autoincrement)")
        self.asked: queue.Queue[Any] = queue.Queue()
        self.answers: queue.Queue[Any] = queue.Queue()
        self.letters = (chr(97 + n % 26) for n in range(1000))
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while (number := self.asked.get()) is not None:
            self.answers.put(number * number)

    def note(self) -> None:
        super().note()
        self.database.execute("insert into calls default values")
        self.asked.put(self.number)
        self.said.append([self.answers.get(timeout=20), next(self.letters)])

    def state(self) -> list[Any]:
        self.asked.put(None)
        rows = [number for (number,) in self.database.execute("select number from calls")]
        self.database.close()
        (self.folder / "database").unlink()
        return [*super().state(), rows, next(self.letters)]
