"""Lists usual learning rates of optimizers and of fine-tuning, beyond which a search range is hardly extended.

| training | usual rates | source |
|---|---|---|
| SGD, also with momentum | 1e-4 to 1 | 0.1 for a batch of 256, 3.2 for 8,192: Goyal et al. 2017, arXiv:1706.02677 |
| Adam, AdamW, RMSprop, LAMB | 1e-6 to 0.03 | the best rates of small language models: Wortsman et al. 2023, arXiv:2309.14322 |
| Lion | 1e-7 to 3e-3 | 3 to 10 times below AdamW: Chen et al. 2023, arXiv:2302.06675 |
| fine-tuning of all weights, except with SGD | 1e-7 to 1e-4 | 2e-5 to 5e-5: Devlin et al. 2019, arXiv:1810.04805 |
| fine-tuning with adapters, except with SGD | 1e-6 to 1e-3 | 2e-4: Hu et al. 2021, arXiv:2106.09685 |

The learning rates in the sources of `advisor.planning.recipes` lie in these ranges; rates of adapters are about ten times as
high.

These limits are not strict: if the best trials lie at one of them, the search extends a small step beyond it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from advisor.model import optimizers
from advisor.model.space import words_of_name
from advisor.model.study import Study

HALF_DECADE = math.sqrt(10)
"""Usual ratio between the best learning rate and each end of a range around it."""


class UsualRates(NamedTuple):
    """The usual learning rates of one kind of training, with its name for a sentence."""

    training: str
    low: float
    high: float


SGD_RATES = UsualRates("SGD", 1e-4, 1.0)
ADAM_RATES = UsualRates("Adam", 1e-6, 0.03)
FULL_FINE_TUNING_RATES = UsualRates("fine-tuning of all weights", 1e-7, 1e-4)
ADAPTER_RATES = UsualRates("fine-tuning with adapters", 1e-6, 1e-3)

_LIKE_ADAM = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "LAMB", "Adafactor")
RATES_BY_OPTIMIZER = {
    **dict.fromkeys(("sgd", "nesterov", "momentum"), SGD_RATES),
    **{name.lower(): ADAM_RATES._replace(training=name) for name in _LIKE_ADAM},
    "lion": UsualRates("Lion", 1e-7, 3e-3),
}
"""Usual learning rates by a word in the optimizer's name: adamw_torch and paged_adamw_8bit both count as AdamW."""

MAX_SEARCHED_CHARS = 200
_NOT_PRETRAINED_VALUES = frozenset(("", "0", "false", "no", "none", "null"))
_ADAPTER_WORDS = frozenset("lora qlora peft".split())
_PRETRAINED_WORDS = _ADAPTER_WORDS | frozenset("finetune finetuned finetuning pretrained".split())
_PRETRAINED_WORD_PAIRS = ({"fine", "tune"}, {"fine", "tuning"}, {"fine", "tuned"}, {"base", "model"}, {"pre", "trained"})


def rates_of_optimizer(name: str) -> UsualRates | None:
    """Return the usual learning rates of the named optimizer, or None for an unknown optimizer."""
    words = [*re.split(r"[^a-z]+", name.lower()), optimizers.optimizer_in_value(name)]
    return next((RATES_BY_OPTIMIZER[w] for w in words if w in RATES_BY_OPTIMIZER), None)


def starts_from_pretrained(params: Mapping[str, object]) -> bool:
    text = "\n".join(f"{name}\n{value}" for name, value in params.items()).lower()
    # A run can have a thousand parameters, so a fast check comes first: every matching word contains one of these strings.
    if not any(part in text for part in ("fine", "trained", "lora", "peft", "base", "name_or_path")):
        return False
    return any(mentions_pretrained(n) or n.endswith("name_or_path") or mentions_pretrained(v) for n, v in _set_params(params))


def _set_params(params: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    texts = ((name, str(value)) for name, value in params.items())
    return ((name, text) for name, text in texts if text.strip().lower() not in _NOT_PRETRAINED_VALUES)


@lru_cache(maxsize=10_000)
def mentions_pretrained(text: str) -> bool:
    words = set(words_of_name(text[:MAX_SEARCHED_CHARS]))
    return bool(words & _PRETRAINED_WORDS) or any(pair <= words for pair in _PRETRAINED_WORD_PAIRS)


def is_fine_tuning(study: Study) -> bool:
    """Return True if the study's name or facts of its trials say that the study fine-tunes a pretrained model."""
    return mentions_pretrained(study.name) or any("pretrained" in t.facts for t in study.trials)


def trains_adapter(params: Mapping[str, object]) -> bool:
    return any(_mentions_adapter(name) or _mentions_adapter(value) for name, value in _set_params(params))


@lru_cache(maxsize=10_000)
def _mentions_adapter(text: str) -> bool:
    text = text[:MAX_SEARCHED_CHARS].lower()
    return ("lora" in text or "peft" in text) and not _ADAPTER_WORDS.isdisjoint(words_of_name(text))


def fine_tuning_rates(study: Study) -> UsualRates:
    has_adapter = _mentions_adapter(study.name) or any("adapter" in t.facts for t in study.trials)
    return ADAPTER_RATES if has_adapter else FULL_FINE_TUNING_RATES
