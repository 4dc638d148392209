"""Stores study files in an experiment's tags, compressed and split if they are longer than a tag may be."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.model.spec import StudySpec
from advisor.model.spec_yaml import format_study_file, parse_study_file

MAX_TAG_CHARACTERS = 5000
"""Maximum number of characters that every MLflow store accepts in a tag's value."""
_PACKED_FILE_PREFIX = "zlib+base64, parts: "
_MAX_FILE_BYTES = 2_000_000
"""Maximum bytes of a decompressed study file."""


def study_file_tags(spec: StudySpec) -> dict[str, str]:
    """Return the tags that store the study file twice: as the experiment's latest file and under the study's name."""
    # A digest stands for the study's name, which may be too long for the name of a tag.
    tag = f"{contract.TAG_STUDY_FILE}.of-{hashlib.sha256(spec.study.encode()).hexdigest()[:12]}"
    text = format_study_file(spec)
    return {**_pack_into_tags(contract.TAG_STUDY_FILE, text), **_pack_into_tags(tag, text)}


def latest_study_file(tags: Mapping[str, str]) -> str | None:
    return _unpack_from_tags(contract.TAG_STUDY_FILE, tags)


def latest_spec(tags: Mapping[str, str]) -> StudySpec | None:
    """Return the most recently stored study file, or None if it is missing or invalid."""
    return _parse_study_file(latest_study_file(tags))


def all_stored_specs(tags: Mapping[str, str]) -> tuple[StudySpec, ...]:
    """Return all valid study files in the tags, sorted by round and name."""
    specs: dict[str, StudySpec] = {}
    of_studies = sorted(t for t in tags if t.startswith(contract.TAG_STUDY_FILE + ".of-") and ".part-" not in t)
    for tag in (contract.TAG_STUDY_FILE, *of_studies):
        spec = _parse_study_file(_unpack_from_tags(tag, tags))
        if spec is not None:
            specs.setdefault(spec.study, spec)
    return tuple(sorted(specs.values(), key=lambda s: (s.round, s.study)))


def _parse_study_file(text: str | None) -> StudySpec | None:
    try:
        return None if text is None else parse_study_file(text)
    except AdvisorError:
        return None


def _pack_into_tags(tag: str, text: str) -> dict[str, str]:
    if len(text) <= MAX_TAG_CHARACTERS:
        return {tag: text}
    archive = base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")
    parts = [archive[i : i + MAX_TAG_CHARACTERS] for i in range(0, len(archive), MAX_TAG_CHARACTERS)]
    return {tag: f"{_PACKED_FILE_PREFIX}{len(parts)}", **{f"{tag}.part-{i}": part for i, part in enumerate(parts)}}


def _unpack_from_tags(tag: str, tags: Mapping[str, str]) -> str | None:
    text = tags.get(tag)
    if text is None or not text.startswith(_PACKED_FILE_PREFIX):
        return text
    try:
        archive = "".join(tags[f"{tag}.part-{i}"] for i in range(int(text.removeprefix(_PACKED_FILE_PREFIX))))
        return zlib.decompressobj().decompress(base64.b64decode(archive), _MAX_FILE_BYTES).decode("utf-8")
    except (KeyError, ValueError, zlib.error):
        return None
