"""TensorBoard: an event file below the run, written by TensorBoard's own writer and without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class TensorBoardTracker:
    """Every opening writes its own folder: two histories in one would be drawn as one crooked line."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.place = str(folder)
        self._writer = EventFileWriter(str(folder))

    def numbers(self, step: int, time: float, values: dict[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._writer.add_event(Event(step=step, wall_time=time, summary=summary))

    def words(self, step: int, time: float, title: str, text: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

        about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
        value = Summary.Value(tag=f"{title}/text_summary", metadata=about, tensor=tensor)
        self._writer.add_event(Event(step=step, wall_time=time, summary=Summary(value=[value])))

    def close(self) -> None:
        self._writer.close()


def open(*, run_dir: Path, title: str, config: dict[str, Any]) -> TensorBoardTracker:
    """`RUN/tensorboard/0001`, or the next number that is free."""
    number = 1
    while (run_dir / "tensorboard" / f"{number:04d}").exists():
        number += 1
    return TensorBoardTracker(run_dir / "tensorboard" / f"{number:04d}")
