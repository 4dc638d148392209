"""Small valid inputs of every kind of `advisor import`, as the trees and bytes that fuzzing starts from."""

from __future__ import annotations

import functools
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

JSON_LINES = [
    {"step": s, "time": 1.7e9 + s, "trial": f"t{s % 2}", "train": {"loss": 1 / (s + 1)}, "note": "a"} for s in range(4)
]
RESULT = [{"training_iteration": i, "timestamp": 1_700_000_000 + i, "time_total_s": i, "loss": 1 / i} for i in (1, 2, 3)]
STATE = {
    "trial_data": [json.dumps({"relative_logdir": "t1", "status": "ERROR"}), ["{}", "{}"]],
    "runner_data": {"_metric": "loss", "_mode": "min"},
}
TRAINER = {
    "best_metric": 0.5,
    "global_step": 20,
    "max_steps": 20,
    "train_batch_size": 8,
    "trial_params": {"lr": 0.1},
    "log_history": [{"step": 10, "loss": 1.0}, {"step": 20, "loss": 0.5, "eval_loss": 0.5, "epoch": 1.0}],
}
ARGUMENTS = {"learning_rate": 1e-3, "metric_for_best_model": "loss", "greater_is_better": False, "nested": {"a": [1, 2]}}
SUMMARY = {"_step": 5, "loss": 0.1, "best": {"loss": 0.1}, "_wandb": {"runtime": 1}}
CONFIG = {"lr": {"desc": None, "value": 0.1}, "_wandb": {"value": {}}, "layers": {"value": [1, 2]}, "wandb_version": 1}
CARD = b"# m\n\n### Training hyperparameters\n- learning_rate: 5e-05\n- seed: 42\n\n### Framework\n- x: y\n"

CSV = b"trial,step,time,val_loss,lr,note\n1,0,1700000000,1.0,0.1,a\n1,1,1700000001.5,nan,0.1,a\n" + (
    b'2,0,,0.9,0.01,"b, c"\n2,1,,,0.01,b\n'
)
RESULTS = b"commit\tval_bpb\tmemory_gb\tstatus\tdescription\na1b2c3d\t0.9\t4.0\tkeep\tbase\nb2c3d4e\t0.0\t0.0\tcrash\tOOM\n"
TSV = CSV.replace(b'"b, c"', b"b c").replace(b",", b"\t")
LIGHTNING = b"epoch,step,train_loss,val_loss\n0,0,1.0,\n0,1,0.9,0.8\n"
ALGOPERF = b"global_step,accumulated_submission_time,validation/loss,validation/num_examples,loss\n10,1.5,0.5,100,0.4\n"
TABLE = (
    b'study,trial,params,status,objective,direction,seed,extra\ns,t1,"{""lr"": 0.1}",complete,loss,min,1,"{""n_train"": 5}"\n'
)
POINTS = b"study,trial,metric,step,value,time_s\ns,t1,loss,0,1.0,0.5\ns,t1,loss,1,0.9,\n"

_LOG_UNIFORM = {"name": "FloatDistribution", "attributes": {"step": None, "low": 0.01, "high": 1.0, "log": True}}
_LR = {"param_name": "lr", "param_value_internal": 0.1, "distribution": json.dumps(_LOG_UNIFORM)}
JOURNAL = [
    {"op_code": 0, "worker_id": "w", "study_name": "s", "directions": [1]},
    {"op_code": 4, "worker_id": "w", "study_id": 0, "datetime_start": "2026-01-01T00:00:00.000000"},
    {"op_code": 5, "worker_id": "w", "trial_id": 0, **_LR},
    {"op_code": 7, "worker_id": "w", "trial_id": 0, "step": 1, "intermediate_value": 0.9},
    {
        "op_code": 6,
        "worker_id": "w",
        "trial_id": 0,
        "state": 1,
        "values": [0.5],
        "datetime_complete": "2026-01-01T00:00:01.000000",
    },
]


def lines(rows: Any) -> bytes:
    """Return one JSON object per line."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in (rows if isinstance(rows, list) else [rows]))


@functools.cache
def events() -> bytes:
    """Return an event file with scalars and hyperparameters."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder)
        for step in range(3):
            writer.add_scalar("val/loss", 1 / (step + 1), step)
        writer.file_writer.add_summary(Summary(value=[Summary.Value(tag="x", simple_value=1.0)]), 3)
        writer.add_hparams({"lr": 0.1, "act": "relu", "bn": True}, {"best": 0.5}, run_name=".")
        writer.close()
        return b"".join(path.read_bytes() for path in sorted(Path(folder).iterdir()))


def events_of(contents: list[bytes]) -> bytes:
    """Return an event file with these records and valid checksums."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    def record(content: bytes) -> bytes:
        head = struct.pack("<Q", len(content))
        sums = (struct.pack("<I", masked_crc32c(data)) for data in (head, content))
        return head + next(sums) + content + next(sums)

    return b"".join(map(record, contents))


@functools.cache
def event_records() -> tuple[bytes, ...]:
    """Return the records in `events`."""
    data, found, at = events(), [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        found.append(data[at + 12 : at + 12 + length])
        at += 16 + length
    return tuple(found)


def records_of(contents: list[bytes]) -> bytes:
    """Return a .wandb file with these records, together less than a block of 32 KiB, and valid checksums."""
    import zlib

    framed = (struct.pack("<IHB", zlib.crc32(c, zlib.crc32(b"\1")), len(c), 1) + c for c in contents)
    return b":W&B\xe1\xbe\0" + b"".join(framed)


@functools.cache
def wandb_records() -> tuple[bytes, ...]:
    """Return the records of a W&B run."""
    from wandb.proto.wandb_internal_pb2 import Record

    run, history, summary, ended = Record(), Record(), Record(), Record()
    run.run.run_id, run.run.project, run.run.display_name, run.run.notes = "r", "p", "n", "a note"
    run.run.start_time.seconds = 1_700_000_000
    for key, text in (("lr", "0.1"), ("opt", '{"value": {"name": "sgd"}}')):
        item = run.run.config.update.add()
        item.key, item.value_json = key, text
    for key, text in (("_step", "3"), ("_timestamp", "1700000003.5"), ("loss", "0.5"), ("a", '{"b": 1}')):
        item = history.history.item.add()
        item.key, item.value_json = key, text
    item = summary.summary.update.add()
    item.nested_key.extend(["best", "loss"])
    item.value_json = "0.5"
    ended.exit.exit_code = 0
    return tuple(r.SerializeToString() for r in (run, history, summary, ended))


@functools.cache
def parquet() -> bytes:
    """Return a table of metrics as Parquet."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"trial": ["1", "1", "2"], "step": [0, 1, 0], "val_loss": [1.0, float("nan"), 0.5], "note": ["a", None, "b"]}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


@functools.cache
def database() -> bytes:
    """Return an SQLite storage of Optuna."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        study = optuna.create_study(storage=f"sqlite:///{folder}/s.db", study_name="s")
        study.enqueue_trial({"x": 0.5})
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1) + len(trial.suggest_categorical("c", ["a", "b"])), 3)
        return Path(folder, "s.db").read_bytes()
