"""Names as an attacker would log them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from advisor.model.change import FixParameter
from advisor.model.evidence import AxisEvidence, CurveEvidence, FigureEvidence, Line, Mark
from advisor.model.finding import Finding, Verdict
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.study import Study
from advisor.report import Report
from tests.advisor.report.studies import make_report, make_study, verdict_on

CORPUS = (
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    "</style><script>window.hacked=1</script>",
    "</title><script>window.hacked=1</script>",
    "</pre></textarea><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<svg onload=window.hacked=1>",
    "<svg><animate onbegin=window.hacked=1 attributeName=x dur=1s>",
    "</desc></svg><img src=x onerror=window.hacked=1>",
    "</text><foreignObject><body onload=window.hacked=1>",
    '"><img src=x onerror=window.hacked=1>',
    "'><img src=x onerror=window.hacked=1>",
    '" autofocus onfocus=window.hacked=1 x="',
    "' onmouseover=window.hacked=1 x='",
    "` onmouseover=window.hacked=1 x=`",
    "javascript:window.hacked=1",
    "<a href=javascript:window.hacked=1>x</a>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'>",
    "<details open ontoggle=window.hacked=1>",
    "<meta http-equiv=refresh content='0;url=javascript:window.hacked=1'>",
    "<base href=//evil.example/>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>@import '//evil.example/x.css'</style>",
    "{{ 7*7 }}{% raw %}${7*7}#{7*7}",
    "{{ ''.__class__.__mro__ }}",
    "<!--<script>window.hacked=1",
    "]]><script>window.hacked=1</script>",
    "&lt;script&gt;window.hacked=1&lt;/script&gt;",
    "\u2028window.hacked=1\u2029",
    "\u202egnp.exe\u202c\u2066x",
    "\x00\x07\x1b[31mred\x1b]8;;http://evil.example\x07link\x1b]8;;\x07",
    "[bold red]markup[/bold red] [link=http://evil.example]x[/link] :smile:",
    "![x](http://evil.example/x.png) [y](javascript:alert(1)) @everyone | ``` |",
    "__proto__",
    "constructor",
    "a" * 480,
    "مرحبا עולם 日本語 🧪",
    "   ",
    "\u00a0\u2003\u3000",
    "\u200b\u200d\ufeff",
    "\u2067\u202e<b>\u202c\u2069",
    "<template><script>window.hacked=1</script></template>",
    "${alert(1)} #{1} <%= 1 %> {% import os %} {{constructor.constructor('window.hacked=1')()}}",
    "<form action=//evil.example><button formaction=javascript:window.hacked=1>",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.hacked=1>",
)


@cache
def hostile_report() -> Report:
    """Every string of the corpus as a study, metric, parameter, choice, trial, message, caption, label and reason."""
    names = list(CORPUS)
    parameters = {n[:480]: Parameter(type="float", low=1e-3, high=1.0, scale="log", why=n) for n in names[:8]}
    parameters |= {f"choice {n[:400]}": Parameter(role="scientific", choices=(n, "plain")) for n in names[8:12]}
    parameters["all choices"] = Parameter(type="categorical", choices=tuple(names))
    spec = StudySpec(
        study=names[1],
        goal=names[2],
        parent=names[5],
        objective=Objective(metric=names[9], direction="minimize"),
        parameters=parameters,
        notes=tuple(names),
    )
    study = make_study(len(names), spec=spec, names=names, statuses={0: "infeasible", 1: "diverged"}, dense=False)
    inferred = {"objective": names[5], "direction": names[6], names[3]: names[7]}
    study = replace(study, inferred=inferred, warnings=tuple(names))
    verdicts = [verdict_on(_finding(study, n, i)) for i, n in enumerate(names)]
    verdicts += [Verdict(rule=n, status="not-assessed", reason=n) for n in names]
    verdicts += [Verdict(rule=n, status="broken", reason=n) for n in names[:6]]
    verdicts += [Verdict(rule=n, status="quiet", reason=n) for n in names]
    return make_report(study, verdicts, rules=())


def _finding(study: Study, text: str, i: int) -> Finding:
    best = [t.id for t in study.ranked()[:3]]
    parameter = list(study.spec.parameters)[i % len(study.spec.parameters)]
    return Finding(
        rule=f"fired-{i}",
        goal="boundary" if i % 2 else "stability",
        severity=("critical", "warning", "note")[i % 3],
        confidence=0.9,
        subject=text,
        trials=(text, *best),
        message=text,
        action=text,
        playbook=text,
        evidence=(
            AxisEvidence(parameter=parameter, caption=text, trials=(text,), lines=(Line(value=0.1, label=text),)),
            CurveEvidence(
                metrics=(study.spec.objective.metric,),
                caption=text,
                trials=tuple(best),
                marks=(Mark(trial=best[0], step=1000, label=text),),
                lines=(Line(value=0.3, label=text),),
            ),
            FigureEvidence(rows=((text, text),)),
        ),
        changes=(FixParameter(parameter=f"new {text}", value=text, why=text),),
    )
