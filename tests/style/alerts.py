#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Alerts (deploy/prometheus) and dashboard (deploy/grafana) name only metrics that there are: those of
docs/observe.md, which metrics.py compares with the tables.  Each metric is on the dashboard.  Each alert has
a section of docs/operations.md, and a case that causes it (tests/http/prometheus).  Each reason of
`heddle status --check` but `broker.settling` has an alert."""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENDS = {"histogram": ("_bucket", "_sum", "_count")}


def read(name):
    return (ROOT / name).read_text()


alerts = dict(re.findall(r"- alert: (\w+)\n(.*?)(?=\n      - alert:|\Z)",
                         read("deploy/prometheus/heddle.rules.yml"), re.S))
exprs = {name: re.search(r"expr: (?:>-\n)?(.*?)\n        (?:for|labels):", body, re.S)[1]
         for name, body in alerts.items()}
shown = {target["expr"] for panel in json.loads(read("deploy/grafana/heddle.json"))["panels"]
         for target in panel.get("targets", ())}
families = re.findall(r"^\| `(heddle_\w+)` \| (\w+) \|", read("docs/observe.md"), re.M)
series = {name + end: name for name, kind in families for end in ENDS.get(kind, ("",))}
reasons = set(re.findall(r'X\([A-Z_]+, "([a-z_.]+)"\)', read("broker/questions/status_reasons.h")))
sections = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", read("docs/operations.md"), re.M)}
cases = read("tests/http/prometheus")

wrong = []
for where, asked in [*exprs.items(), *(("dashboard", expr) for expr in sorted(shown))]:
    wrong += [f"{where}: {name} is no metric"
              for name in re.findall(r"\bheddle_\w+", asked) if name not in series]
    wrong += [f"{where}: {value} is no reason"
              for value in re.findall(r'\breason="([^"]*)"', asked) if value not in reasons]
on_it = {series[name] for expr in shown for name in re.findall(r"\bheddle_\w+", expr) if name in series}
wrong += [f"the dashboard has no {name}" for name in sorted({name for name, _ in families} - on_it)]
for name, body in alerts.items():
    link = re.search(r"runbook_url: docs/operations\.md#(\S+)", body)
    if not link or link[1] not in sections:
        wrong.append(f"{name}: {link[1] if link else 'its runbook'} is no section of docs/operations.md")
    if f"def case_{name}(c)" not in cases or f'p.fires("{name}")' not in cases:
        wrong.append(f"{name}: no case of tests/http/prometheus causes it")
    if not re.search(r"severity: (page|ticket)", body) or not re.search(r'summary: .*\."?$', body, re.M):
        wrong.append(f"{name}: severity, or a summary that is a sentence, is missing")
all_of_them = " ".join(exprs.values())
wrong += [f"no alert for {reason}" for reason in sorted(reasons - {"broker.settling"})
          if f'"{reason}"' not in all_of_them]
print("\n".join(wrong) if wrong else f"alerts: {len(alerts)} name metrics and sections that there are")
sys.exit(1 if wrong or len(alerts) < 10 else 0)
