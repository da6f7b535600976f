"""Text from results: tables and verdict. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from octavo_simulator.families import FAMILIES, label
from octavo_simulator.fronts import Interval, Point, front, hours_at, one_for_all
from octavo_simulator.scenario import Scenario
from octavo_simulator.sweep import Result
from octavo_simulator.tables import table

OURS = "octavo"
LEVELS = (0.95, 0.99)
# The criterion, fixed before the first run: at 99 % attainment, 10 % fewer GPU-hours than the best-tuned baseline on
# four of six workloads, and nowhere more than 3 % more.
GAIN, GAINS, LOSS = 0.10, 4, 0.03
_TITLES = {family.name: family.title for family in FAMILIES}
BASELINES = [family.name for family in FAMILIES if family.baseline and family.name != OURS]


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One workload at one attainment level: GPU-hours of each family's best setting, None if no setting reaches it."""

    workload: str
    level: float
    hours: Mapping[str, float | None]

    @property
    def best(self) -> tuple[str, float] | None:
        """The cheapest baseline and its GPU-hours."""
        reached = [(hours, name) for name in BASELINES if (hours := self.hours.get(name)) is not None]
        return (min(reached)[1], min(reached)[0]) if reached else None

    @property
    def ratio(self) -> float | None:
        """Octavo's GPU-hours divided by those of the cheapest baseline."""
        ours = self.hours.get(OURS)
        return ours / self.best[1] if ours is not None and self.best else None


def points(results: Iterable[Result], workload: str, family: str, part: str = "judged") -> list[Point]:
    """Cost and attainment of a family's settings on one workload, without faults, for the first seed."""
    return [
        Point(figures["gpu_hours"], figures.get("attainment", 0.0), label(one.task.knobs))
        for one in results
        if (one.task.workload, one.task.family, one.task.seed) == (workload, family, 0) and not one.task.fault
        for figures in [one.judged if part == "judged" else one.tuning]
    ]


def lines(results: Sequence[Result], workloads: Iterable[str]) -> list[ReportLine]:
    """All workloads at all levels."""
    return [
        ReportLine(name, level, {f.name: hours_at(points(results, name, f.name), level) for f in FAMILIES})
        for name in workloads
        for level in LEVELS
    ]


def chosen(results: Sequence[Result], family: str, workloads: Sequence[str], part: str = "tuning") -> str:
    """A family's one setting for all workloads, chosen on `part`: only `tuning` is available before the judged part."""
    known: dict[str, dict[str, Point]] = {}
    for name in workloads:
        for point in points(results, name, family, part):
            known.setdefault(point.name, {})[name] = point
    complete = {setting: found for setting, found in known.items() if len(found) == len(workloads)}
    return one_for_all(complete, LEVELS[-1])


@dataclass(frozen=True, slots=True)
class Single:
    """One scaler with one setting on all workloads: attainment and cost of each."""

    family: str
    setting: str
    points: Mapping[str, Point]

    @property
    def kept(self) -> int:
        """The number of workloads at or above the highest level."""
        return sum(point.attainment >= LEVELS[-1] for point in self.points.values())

    @property
    def hours(self) -> float:
        """GPU-hours of all workloads."""
        return sum(point.hours for point in self.points.values())


def singles(results: Sequence[Result], workloads: Sequence[str], part: str) -> list[Single]:
    """Every scaler with one setting for all workloads, chosen on `part`; its results on the judged part."""
    found = []
    for family in FAMILIES:
        setting = chosen(results, family.name, workloads, part)
        picked = {name: p for name in workloads for p in points(results, name, family.name) if p.name == setting}
        found.append(Single(family.name, setting, picked))
    return found


def verdict(found: Sequence[ReportLine]) -> str:
    """The criterion, and whether it is met.

    A workload on which no scaler reaches the criterion's level is judged at the next lower one, and listed as such.
    """
    judged = [_judged_at(found, name) for name in dict.fromkeys(line.workload for line in found)]
    lower = [line.workload for line in judged if line.level < LEVELS[-1]]
    alone = [line.workload for line in judged if line.hours.get(OURS) is not None and line.best is None]
    gains = [line.workload for line in judged if line.ratio is not None and line.ratio <= 1 - GAIN]
    losses = [line.workload for line in judged if (line.ratio or 0.0) > 1 + LOSS]
    beyond = [line.workload for line in judged if line.hours.get(OURS) is None]
    met = len(gains) >= GAINS and not losses and not beyond
    names = ", ".join(gains) or "none"
    claim = (
        f"each scaler tuned for each workload, Octavo needs at least {GAIN:.0%} fewer GPU-hours than the best baseline"
    )
    share = f"{len(gains)} of {len(judged)} workloads ({names}; the bar: {GAINS})"
    parts = [f"At {LEVELS[-1]:.0%} attainment, {claim} on {share}."]
    if alone:
        parts.append(f"No baseline gets there with any setting on {', '.join(alone)}, which counts for nothing.")
    if lower:
        parts.append(f"No scaler gets there on {', '.join(lower)}: judged at {LEVELS[0]:.0%}.")
    if losses:
        parts.append(f"It needs over {LOSS:.0%} more on {', '.join(losses)}.")
    if beyond:
        parts.append(f"It does not get there with any setting on {', '.join(beyond)}.")
    return f"**The bar is {'met' if met else 'not met'}.** {' '.join(parts)}"


def _judged_at(found: Sequence[ReportLine], workload: str) -> ReportLine:
    """The line of the highest level that Octavo or a baseline reaches."""
    known = sorted((line for line in found if line.workload == workload), key=lambda line: -line.level)
    return next((line for line in known if line.hours.get(OURS) is not None or line.best is not None), known[-1])


def costs(found: Sequence[ReportLine], level: float) -> str:
    """Table of GPU-hours at one level, each scaler at its best setting for each workload."""
    names = [family.name for family in FAMILIES]
    rows = []
    for line in (line for line in found if line.level == level):
        cells = ["–" if (hours := line.hours[name]) is None else f"{hours:.2f}" for name in names]
        ratio = "–" if line.ratio is None or line.best is None else f"{line.ratio:.2f} ({_TITLES[line.best[0]]})"
        rows.append([line.workload, *cells, ratio])
    return table(["workload", *(_TITLES[name] for name in names), "Octavo by best baseline"], rows)


def one_setting(found: Iterable[Single]) -> str:
    """Table of scalers with one setting for all workloads: workloads at the level, GPU-hours, and both by workload."""
    rows, names = [], []
    for one in found:
        names = list(one.points)
        lowest = min(point.attainment for point in one.points.values())
        cells = [f"{point.attainment:.1%} · {point.hours:.2f}" for point in one.points.values()]
        kept = f"{one.kept} of {len(names)}"
        rows.append([_TITLES[one.family], one.setting, kept, f"{lowest:.1%}", f"{one.hours:.1f}", *cells])
    return table(["scaler", "setting", f"{LEVELS[-1]:.0%} kept", "lowest", "GPU-hours", *names], rows)


def for_all(found: Sequence[Single]) -> str:
    """Summary of one setting for all workloads: Octavo, and the baseline that keeps the level on most workloads."""
    [ours] = [one for one in found if one.family == OURS]

    def by_ours(one: Single) -> float:
        """Its GPU-hours relative to Octavo's; the mean over workloads, so that larger pods do not weigh more."""
        return fmean(point.hours / ours.points[name].hours for name, point in one.points.items())

    theirs = min((one for one in found if one.family in BASELINES), key=lambda one: (-one.kept, by_ours(one)))
    return (
        f"**With one setting for all, each scaler's best:** Octavo ({ours.setting}) keeps {LEVELS[-1]:.0%} on "
        f"{ours.kept} of {len(ours.points)} workloads. Of the baselines {_TITLES[theirs.family]} ({theirs.setting}) "
        f"does best: on {theirs.kept}, with {by_ours(theirs):.2f} times Octavo's GPU-hours (mean over workloads)."
    )


def hard(results: Sequence[Result], workloads: Sequence[str]) -> str:
    """Table of Octavo's one setting against each workload's best-tuned baseline at the same attainment."""
    setting = chosen(results, OURS, workloads)
    rows = []
    for name in workloads:
        ours = next(p for p in points(results, name, OURS) if p.name == setting)
        reached = [
            (hours, family)
            for family in BASELINES
            if (hours := hours_at(points(results, name, family), ours.attainment)) is not None
        ]
        if reached:
            hours, family = min(reached)
            theirs, ratio = f"{hours:.2f} ({_TITLES[family]})", f"{ours.hours / hours:.2f}"
        else:
            theirs, ratio = "none gets there", "–"
        rows.append([name, f"{ours.attainment:.2%}", f"{ours.hours:.2f}", theirs, ratio])
    head = ["workload", "attainment", "GPU-hours", "best-tuned baseline at that attainment", "ratio"]
    return f"Setting: {setting}.\n\n{table(head, rows)}"


def rival(results: Sequence[Result], workload: str, attainment: float) -> tuple[str, str]:
    """The cheapest baseline and setting for an attainment; if none reaches it, those with the highest."""
    known = [(p, family) for family in BASELINES for p in front(points(results, workload, family))]
    reached = [(p.hours, family, p.name) for p, family in known if p.attainment >= attainment]
    if reached:
        return min(reached)[1:]
    point, family = max(known, key=lambda pair: pair[0].attainment)
    return family, point.name


def intervals(rows: Iterable[tuple[str, str, str, int, Interval, Interval]]) -> str:
    """Table of paired comparisons: workload, ours, theirs, number of seeds, cost ratio, attainment difference."""
    shown = [
        [
            name,
            ours,
            theirs,
            f"{seeds}",
            f"{cost.value:.2f} ({cost.low:.2f}–{cost.high:.2f})",
            f"{100 * more.value:+.2f} ({100 * more.low:+.2f} to {100 * more.high:+.2f})",
        ]
        for name, ours, theirs, seeds, cost, more in rows
    ]
    return table(
        ["workload", "Octavo", "best-tuned baseline", "seeds", "GPU-hours, ratio", "attainment, points"], shown
    )


def details(results: Iterable[tuple[str, Mapping[str, float]]], first: str) -> str:
    """Table of all figures, one line per run."""
    head = [first, "attained", "GPU-hours", "TTFT p50, p99", "TPOT p50, p99", "good per GPU-hour"]
    head += ["recomputed", "hits", "starts", "changes/h", "longest hold"]
    rows = [
        [
            name,
            f"{f.get('attainment', 0):.2%}",
            f"{f['gpu_hours']:.2f}",
            f"{_ms(f, 'ttft_p50')}, {_ms(f, 'ttft_p99')}",
            f"{_ms(f, 'tpot_p50')}, {_ms(f, 'tpot_p99')}",
            f"{f.get('good_per_gpu_hour', 0):.0f}",
            f"{f['preemption_tax']:.2%}",
            f"{f['hit_ratio']:.0%}",
            f"{f['starts']:.0f}",
            f"{f['changes_per_hour']:.0f}",
            f"{f['longest_hold']:.0f} s",
        ]
        for name, f in results
    ]
    return table(head, rows)


def workloads(scenarios: Iterable[Scenario]) -> str:
    """Table of the workloads."""
    rows = []
    for one in scenarios:
        requests, seconds = one.trace.requests, one.trace.seconds
        minutes = [0] * (int(seconds // 60) + 1)
        for request in requests:
            minutes[int(request.at // 60)] += 1
        whole = minutes[:-1] or minutes
        rows.append(
            [
                one.name,
                f"{len(requests)}",
                f"{seconds / 60:.0f} min",
                f"{fmean(r.prompt for r in requests):.0f}, {fmean(r.output for r in requests):.0f}",
                f"{max(whole) / (sum(whole) / len(whole)):.1f}",
                one.profile.name,
                f"{one.promise.ttft:g} s, {one.promise.tpot * 1000:g} ms",
            ]
        )
    head = ["workload", "requests", "length", "tokens in, out", "busiest minute by mean", "pod", "promised TTFT, TPOT"]
    return table(head, rows)


def _ms(figures: Mapping[str, float], name: str) -> str:
    value = figures.get(name)
    return "–" if value is None else f"{value:.2f} s" if value >= 1 else f"{1000 * value:.0f} ms"
