"""Fuzzes the importers guided by code coverage: `make fuzz`, or with libFuzzer's options

    python tests/fuzz/coverage_guided.py -max_total_time=300

Needs `pip install atheris`. The first byte of an input selects the kind of file, the rest is its content. An input that is neither
read nor refused in one line ends the run and is saved in the working folder as `crash-…`; pass its path to repeat it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
import tests.fuzz.inputs  # noqa: F401 - what it imports is not what is fuzzed, and would only be slower

with atheris.instrument_imports(include=["advisor.interop.importers", "advisor.model.spec_yaml", "advisor.config"]):
    from advisor.engine.settings import find_settings
    from advisor.model import spec_yaml
    from tests.fuzz import sources
    from tests.fuzz.test_imports import BESIDE, TREES, WHOLE, read

from advisor.model.errors import AdvisorError
from tests.fuzz.outcome import watched
from tests.fuzz.test_study_files import SETTINGS, SPEC, written

FILES = [
    *WHOLE.values(),
    *((kind, name, content(tree)) for kind, name, tree, content in TREES.values()),
    ("tensorboard", "r/events.out.tfevents.1", sources.events()),
    ("wandb", "run-1/run-1.wandb", sources.records_of(list(sources.wandb_records()))),
    ("csv", "a.parquet", sources.parquet()),
    ("study", "study.yaml", written(SPEC)),
    ("settings", "advisor.toml", SETTINGS),
]
"""(kind, name, content of a valid one)."""


def make_folders(root: Path) -> list[Path]:
    """Return a folder for each of `FILES`, with the files that belong to it."""
    folders = [root / str(number) for number in range(len(FILES))]
    for folder, (kind, name, content) in zip(folders, FILES, strict=True):
        for path, whole in {**BESIDE.get(kind, {}), name: content}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(whole)
    return folders


def main() -> None:
    """Fuzz until a libFuzzer option ends the run."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    folders = make_folders(root / "files")
    corpus = root / "corpus"
    corpus.mkdir()
    for number, (*_, content) in enumerate(FILES):
        (corpus / str(number)).write_bytes(bytes([number]) + content)

    def once(data: bytes) -> None:
        number = (data[0] if data else 0) % len(FILES)
        kind, name, _ = FILES[number]
        (folders[number] / name).write_bytes(data[1:])
        with watched(folders[number]):
            try:
                if kind == "study":
                    spec_yaml.load(folders[number] / name)
                elif kind == "settings":
                    find_settings(folders[number])
                else:
                    read(kind, folders[number])
            except AdvisorError:
                pass

    atheris.Setup([sys.argv[0], str(corpus), "-timeout=60", "-max_len=4000", *sys.argv[1:]], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
