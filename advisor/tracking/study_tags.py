"""A study file as tags of an experiment, from which any later analysis knows what its trials were drawn from.

Trackers take a few thousand characters a tag, the least of them 5,000: a longer file is compressed and goes on in further tags.
Experiments that hold several studies, because somebody gave them one name, keep the file of each.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.model.spec import StudySpec
from advisor.model.spec_yaml import dump, loads

MOST = 5000
"""Characters of a tag's value."""
_PACKED = "zlib+base64, parts: "
_LARGEST = 2_000_000


def tags_of(spec: StudySpec) -> dict[str, str]:
    """The tags that note the study file: the one that declares the experiment's space, and the one kept under the study's name."""
    return {**_written(contract.TAG_STUDY_FILE, dump(spec)), **_written(_own(spec.study), dump(spec))}


def text_of(tags: Mapping[str, str]) -> str | None:
    """The study file that the tags note, of several studies the one noted last; None without one."""
    return _read(contract.TAG_STUDY_FILE, tags)


def noted(tags: Mapping[str, str]) -> StudySpec | None:
    """As `text_of`, read; None where it is none."""
    text = text_of(tags)
    try:
        return None if text is None else loads(text)
    except AdvisorError:
        return None


def specs_of(tags: Mapping[str, str]) -> tuple[StudySpec, ...]:
    """All studies that the tags note, by round and name; what cannot be read as a study file is left out."""
    found: dict[str, StudySpec] = {}
    for tag in (contract.TAG_STUDY_FILE, *sorted(t for t in tags if _is_first(t))):
        text = _read(tag, tags)
        try:
            spec = None if text is None else loads(text)
        except AdvisorError:
            continue
        if spec is not None:
            found.setdefault(spec.study, spec)
    return tuple(sorted(found.values(), key=lambda s: (s.round, s.study)))


def _own(study: str) -> str:
    """The tag of one study's file; a digest, because names are longer than tags may be."""
    return f"{contract.TAG_STUDY_FILE}.of-{hashlib.sha256(study.encode()).hexdigest()[:12]}"


def _is_first(tag: str) -> bool:
    return tag.startswith(contract.TAG_STUDY_FILE + ".of-") and ".part-" not in tag


def _written(tag: str, text: str) -> dict[str, str]:
    if len(text) <= MOST:
        return {tag: text}
    packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")
    parts = [packed[i : i + MOST] for i in range(0, len(packed), MOST)]
    return {tag: f"{_PACKED}{len(parts)}", **{f"{tag}.part-{i}": part for i, part in enumerate(parts)}}


def _read(tag: str, tags: Mapping[str, str]) -> str | None:
    text = tags.get(tag)
    if text is None or not text.startswith(_PACKED):
        return text
    try:
        packed = "".join(tags[f"{tag}.part-{i}"] for i in range(int(text.removeprefix(_PACKED))))
        return zlib.decompressobj().decompress(base64.b64decode(packed), _LARGEST).decode("utf-8")
    except (KeyError, ValueError, zlib.error):
        return None
