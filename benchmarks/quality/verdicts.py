"""Records the verdicts on every labelled study and compares two records, to test changes that must not change a verdict.

    python benchmarks/quality/verdicts.py before.jsonl            record every verdict and every next study
    python benchmarks/quality/verdicts.py after.jsonl --against before.jsonl

Each line holds one study: status, severity, confidence, subject, side, trials, changes and cause of every finding, and the next
studies. Texts (messages, reasons, goals, notes) are left out, because they may be rewritten. The studies are those of `cases.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import Case, load_cases
from rich.progress import track

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.engine.rule import Rule
from advisor.history.predict import add_predictions
from advisor.model.errors import AdvisorError
from advisor.planning import plan

TEXTS = {"why", "notes", "goal", "because", "was", "message", "action", "text", "caption", "label"}
FIELDS = ("severity", "confidence", "subject", "side", "trials", "changes", "explained_by")


@cache
def rules() -> tuple[Rule, ...]:
    """The built-in rules, with their default thresholds."""
    return load_rules(settings={})


def record(case: Case) -> str:
    """Return the advisor's verdicts on the case's study as a line of JSON."""
    try:
        study = case.study()
    except AdvisorError:
        return json.dumps({"view": case.view, "error": True})
    verdicts = judge(study, rules())
    next_round = plan(study, verdicts, rules())
    specs = add_predictions(study, verdicts, next_round.specs, rules())
    line = {
        "view": case.view,
        "verdicts": [
            {"rule": v.rule, "status": v.status, "findings": [_without_free_text(_compared_fields(f)) for f in v.findings]}
            for v in verdicts
        ],
        "next": [_without_free_text(spec.model_dump(mode="json")) for spec in specs],
        "deferred": len(next_round.deferred),
    }
    return json.dumps(line, sort_keys=True)


def _compared_fields(finding: Any) -> dict[str, Any]:
    dumped = finding.model_dump(mode="json")
    return {name: dumped[name] for name in FIELDS}


def _without_free_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_free_text(v) for k, v in value.items() if k not in TEXTS}
    return [_without_free_text(v) for v in value] if isinstance(value, list) else value


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between two records of the same study: a rule and the differing fields, or the next studies."""
    if before.keys() != after.keys():
        yield "whether it can be read"
        return
    old_verdicts = {v["rule"]: v for v in before.get("verdicts", ())}
    for new in after.get("verdicts", ()):
        old = old_verdicts.get(new["rule"])
        if old is None:
            if new["status"] == "fired":
                yield f"{new['rule']}: a new rule that fired"
        elif old["status"] != new["status"]:
            yield f"{old['rule']}: {old['status']} before, {new['status']} after"
        elif old != new:
            pairs = zip(old["findings"], new["findings"], strict=False)
            fields = sorted({name for a, b in pairs for name in a if a[name] != b[name]}) or ["number of findings"]
            yield f"{old['rule']}: {', '.join(fields)}"
    if before.get("next") != after.get("next"):
        yield "next studies"


def main() -> None:
    """Record all verdicts, and compare them with an earlier record if the user asks for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="file to record to")
    parser.add_argument("--against", type=Path, help="an earlier record: print the differences; exit status 1 if there are any")
    options = parser.parse_args()
    views = {case.view: case for case in reversed(load_cases())}
    with ProcessPoolExecutor() as pool, options.out.open("w", encoding="utf-8") as file:
        lines = pool.map(record, (views[view] for view in sorted(views)), chunksize=8)
        file.writelines(line + "\n" for line in track(lines, total=len(views), description="Judging"))
    if options.against is None:
        return
    before = {(line := json.loads(text))["view"]: line for text in options.against.read_text("utf-8").splitlines()}
    found: Counter[str] = Counter()
    for text in options.out.read_text("utf-8").splitlines():
        after = json.loads(text)
        if after["view"] in before:
            found.update(differences(before[after["view"]], after))
    for what, count in found.most_common():
        print(f"{count:5} {what}")
    print(f"{len(before):,} studies, {sum(found.values()):,} differences")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
