"""Stores the blocks of a search as study files in a folder, one file per block, so that an interrupted search can resume."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import get_args

from advisor.model.errors import AdvisorError, convert_write_errors
from advisor.model.spec import StudySpec
from advisor.model.spec_yaml import format_study_file, load_study_file
from advisor.planning.blocks import Block, BlockKind
from advisor.planning.goals import slug
from advisor.system import atomic

_BLOCK_FILE_PATTERN = re.compile(rf"(\d+)-({'|'.join(get_args(BlockKind))})(?:-[a-z0-9-]*)?\.yaml")
_FIXED_SEARCH_FIELDS = ("objective", "parameters", "forbidden", "sampler", "max_train_steps", "schedule")
"""Study fields that may not change when a search resumes: the first block's file and the user's study file must agree on them."""


@dataclass(frozen=True)
class BlockFile:
    path: Path
    kind: BlockKind
    spec: StudySpec

    @property
    def block(self) -> Block:
        return Block(self.kind, self.spec)

    @property
    def output_folder(self) -> Path:
        return self.path.with_suffix("")


def read_block_files(folder: Path) -> list[BlockFile]:
    """Return the study files of all blocks, in order. Raises AdvisorError if a block's file is missing, invalid or duplicate."""
    block_paths = sorted((int(m[1]), m[2], p) for p in folder.glob("*.yaml") if (m := _BLOCK_FILE_PATTERN.fullmatch(p.name)))
    duplicate = next((a[0] for a, b in pairwise(block_paths) if a[0] == b[0]), None)
    if duplicate is not None:
        raise AdvisorError(
            f"{folder} has two files for block {duplicate}, perhaps from two searches at once; keep the file whose study has runs "
            "in the experiment, and remove the other"
        )
    if [number for number, _, _ in block_paths] != list(range(1, len(block_paths) + 1)):
        raise AdvisorError(
            f"a block's file is missing in {folder}: block files are numbered from 01; restore it, or pass another --out"
        )
    kinds: dict[str, BlockKind] = {kind: kind for kind in get_args(BlockKind)}
    return [BlockFile(path, kinds[kind], load_study_file(path)) for _, kind, path in block_paths]


def write_block_file(folder: Path, number: int, block: Block, subject: str) -> BlockFile:
    """Write a block's study file, read the file again and return it. subject: description of the block for the file name."""
    path = folder / f"{'-'.join(filter(None, [f'{number:02}', block.kind, slug(subject) if subject else '']))}.yaml"
    with convert_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write_files({path: format_study_file(block.spec)})
    return BlockFile(path, block.kind, load_study_file(path))


def check_same_starting_study(folder: Path, files: Sequence[BlockFile], start: StudySpec, *, correctable: bool) -> None:
    """Raise AdvisorError if the search in `folder` started from another study. correctable: ignore the objective."""
    fixed_fields = [part for part in _FIXED_SEARCH_FIELDS if not (correctable and part == "objective")]
    changed_fields = [part for part in fixed_fields if files and getattr(files[0].spec, part) != getattr(start, part)]
    if changed_fields:
        raise AdvisorError(
            f"{folder} holds a search that started with a different value of {changed_fields[0]!r}; for a new search, pass "
            "--experiment with a new name"
        )


def correct_objective_in_files(files: Sequence[BlockFile], start: StudySpec) -> list[BlockFile]:
    new = {"objective": start.objective}
    specs = [file.spec.model_copy(update=new) for file in files]
    specs = [s if s.baseline is None else s.model_copy(update={"baseline": s.baseline.model_copy(update=new)}) for s in specs]
    with convert_write_errors(files[0].path.parent):
        atomic.write_files({file.path: format_study_file(spec) for file, spec in zip(files, specs, strict=True)})
    return [replace(file, spec=spec) for file, spec in zip(files, specs, strict=True)]
