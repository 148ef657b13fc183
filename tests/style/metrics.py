#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/observe.md lists every metric of the tables (metric_t) with its type and label, and no other;
names follow Prometheus: a unit is the name's end, and no name has the end of a sample.  Prints what differs;
exits with 1.  `--write` prints the table for the page."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLES = ("broker/main_metrics.c", "http/server.c", "sidecar/http_metrics.c")
ROW = re.compile(r'\{"(heddle_\w+)", "(\w*)", METRIC_(\w+), (?:NULL|"(\w+)"),\s*((?:"[^"]*"\s*)+)\}')
SAID = re.compile(r"^\| `(heddle_\w+)` \| (\w+) \| (?:`(\w+)`|–) \| (.*) \|$", re.M)
ENDS = {"COUNTER": "_total", "INFO": "_info", "GAUGE": "", "HISTOGRAM": ""}


def declared():
    for table in TABLES:
        for name, unit, kind, label, help_ in ROW.findall((ROOT / table).read_text()):
            text = "".join(re.findall(r'"([^"]*)"', help_))
            yield name, unit, kind, label, text


rows = list(declared())
made = [(name + ENDS[kind], kind.lower(), label, text) for name, _, kind, label, text in rows]
if sys.argv[1:] == ["--write"]:
    for name, kind, label, text in made:
        print(f"| `{name}` | {kind} | {f'`{label}`' if label else '–'} | {text} |")
    sys.exit()
said = SAID.findall((ROOT / "docs/observe.md").read_text())
wrong = [f"docs/observe.md has not: {row}" for row in made if row not in said]
wrong += [f"docs/observe.md has, and no table: {row}" for row in said if row not in made]
for name, unit, kind, _, text in rows:
    if unit and not name.endswith("_" + unit):
        wrong.append(f"{name} does not end with its unit, {unit}")
    if re.search("_(total|info|count|sum|bucket)$", name):
        wrong.append(f"{name} has the end of a sample")
    if text.endswith("."):
        wrong.append(f"{name}: its help ends with a full stop, which the text adds")
if len({row[0] for row in rows}) != len(rows):
    wrong.append("a metric is declared twice")
print("\n".join(wrong) if wrong else f"metrics: {len(rows)} are on their page")
sys.exit(1 if wrong or len(rows) < 10 else 0)
