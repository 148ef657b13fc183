# SPDX-License-Identifier: Apache-2.0
"""The picture at the end: reward, lag of the samples, and who served what."""
from __future__ import annotations

import pathlib
from collections import Counter
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"w1": "#4477aa", "w2": "#ccbb44", "w3": "#228833"}
LAGS = ["#4477aa", "#66ccee", "#ccbb44", "#ee6677"]


def draw(live: Any, frozen: Any, plan: Any, path: pathlib.Path) -> None:
    figure, (reward, lag, served) = plt.subplots(3, 1, figsize=(10, 10), sharex=True, height_ratios=[3, 2, 2],
                                                 layout="constrained")
    draw_reward(reward, live, frozen, plan)
    draw_lag(lag, live, frozen)
    draw_served(served, live)
    for axes in (reward, lag, served):
        mark(axes, plan)
        axes.spines[["top", "right"]].set_visible(False)
    served.set_xlabel("step of the trainer, which publishes version step + 1")
    served.set_xlim(-1, plan.steps + 1)
    figure.suptitle("GRPO with rollout workers behind Heddle: the same run, with live versions and frozen at "
                    "version 1")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def steps(run: Any) -> list[int]:
    return [row["step"] for row in run.rows]


def draw_reward(axes: Any, live: Any, frozen: Any, plan: Any) -> None:
    for run, colour, label in ((live, "#4477aa", "live versions"),
                               (frozen, "#bb5566", "frozen at version 1")):
        rewards = [row["reward"] for row in run.rows]
        axes.plot(steps(run), rewards, color=colour, alpha=0.25, linewidth=1)
        axes.plot(steps(run), smooth(rewards), color=colour, linewidth=2, label=label)
        axes.plot([plan.steps], [run.facts["trained"]], marker="o", color=colour, clip_on=False)
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("reward of the samples\n(dot: the trained policy)")
    axes.legend(loc="center right", frameon=False)


def smooth(values: list[float], window: int = 9) -> list[float]:
    windows = [values[max(0, i - window + 1):i + 1] for i in range(len(values))]
    return [sum(w) / len(w) for w in windows]


def draw_lag(axes: Any, live: Any, frozen: Any) -> None:
    """JSON made the lags words."""
    base = [0] * len(live.rows)
    for lag in sorted(map(int, live.count("lag"))):
        heights = [row["lag"].get(str(lag), 0) for row in live.rows]
        axes.bar(steps(live), heights, bottom=base, width=1.0, color=LAGS[min(lag, 3)], label=f"{lag} behind")
        base = [b + h for b, h in zip(base, heights)]
    dropped = [-sum(row["dropped"].values()) for row in live.rows]
    axes.bar(steps(live), dropped, width=1.0, color="#ee6677", label="dropped, over the bound")
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_ylabel("samples by lag\n(versions behind the newest)")
    worst = max(map(int, frozen.count("lag")))
    axes.set_title(f"live run; in the frozen run the lag grows to {worst}", fontsize=8, loc="right")
    above(axes)


def draw_served(axes: Any, live: Any) -> None:
    """At step n version n + 1 is new: the axis is that of the steps, one to the left."""
    base: Counter = Counter()
    for worker, colour in COLOURS.items():
        samples = live.samples_of(worker)
        versions = sorted(samples)
        axes.bar([v - 1 for v in versions], [samples[v] for v in versions],
                 bottom=[base[v] for v in versions], width=1.0, color=colour,
                 label=f"{worker}: {samples.total()} samples of {len(versions)} versions")
        base.update(samples)
    axes.set_ylabel("samples of each version,\nby who served them")
    above(axes)


def above(axes: Any) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=4, frameon=False,
                fontsize=8)


def mark(axes: Any, plan: Any) -> None:
    for step, text in ((plan.join_at, "w3 joins"), (plan.kill_at, "w1 killed")):
        axes.axvline(step, color="black", linestyle=":", linewidth=1)
        axes.annotate(text, (step, 1), xycoords=("data", "axes fraction"), xytext=(3, -10),
                      textcoords="offset points", fontsize=8)
