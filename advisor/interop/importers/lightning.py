"""Imports what Lightning's `CSVLogger` writes: folders with `metrics.csv`, and `hparams.yaml` beside it."""

from __future__ import annotations

from pathlib import Path

from advisor.interop.importers import files, flat
from advisor.interop.importers.flat import Layout
from advisor.interop.importers.runs import Content, Found
from advisor.model.errors import AdvisorError

_METRICS, _PARAMS = "metrics.csv", "hparams.yaml"
_LAYOUT = Layout(step="step")


def find(path: Path) -> list[Found]:
    """The runs at or below a folder, one a `metrics.csv`; AdvisorError if there is none."""
    files.require(path, "a folder that Lightning's CSVLogger wrote, such as lightning_logs")
    root = path if path.is_dir() else path.parent
    found = [
        _found(folder, root) for folder, _ in files.folders(root, _METRICS.__eq__) if path.is_dir() or folder == root
    ]
    if not found or not (path.is_dir() or path.name == _METRICS):
        raise AdvisorError(
            f"{files.printable(path)}: no {_METRICS} there; give a folder that Lightning's CSVLogger wrote"
        )
    return found


def _found(folder: Path, root: Path) -> Found:
    metrics, params = folder / _METRICS, folder / _PARAMS
    name = files.run_name(folder, root)

    def read() -> Content:
        if "step" not in flat.columns_of(metrics):
            raise AdvisorError(f"{files.printable(metrics)} has no column 'step', as Lightning's CSVLogger writes it")
        return Content(
            flat.read_rows(metrics, _LAYOUT).curves.points(),
            hyperparameters(params),
            started_ms=files.modified_ms(metrics),
        )

    return Found(
        name,
        ("lightning", name, _birth(metrics)),
        files.folder_name(root),
        read,
        files.state_of([metrics, params]),
    )


def hyperparameters(path: Path) -> dict[str, object]:
    """What a `hparams.yaml` holds; nothing if there is none."""
    return files.read_mapping(path) if path.is_file() else {}


def _birth(metrics: Path) -> str:
    """What stays as it is when the file grows, also by columns; the run is refused when it is read, where that is nothing."""
    try:
        return files.digest_of(flat.first_row(metrics))
    except AdvisorError:
        return ""
