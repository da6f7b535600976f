"""`octavo-simulate`: replays a request trace against an LLMDeployment's autoscaler, without GPUs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from octavo_operator.api.v1alpha1 import Spec
from octavo_simulator import spec as specs
from octavo_simulator import steptime, trace
from octavo_simulator.cluster import Run, simulate
from octavo_simulator.metrics import WindowFigures, figures
from octavo_simulator.scenario import Promise, Scenario
from octavo_simulator.tables import table


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 for invalid input."""
    given = _parser().parse_args(argv)
    decisions: list[bytes] = []
    try:
        spec = specs.load(given.spec)
        requests = trace.load(given.trace)
        controller = specs.controller(spec, requests.start, decisions.append if given.decisions else None)
        profile = _profile(given.profile)
        for option in (given.decisions, given.plot):
            _check_folder(option)
    except (_OptionError, specs.SpecError, steptime.ProfileError, trace.TraceError) as error:
        print(f"octavo-simulate: {error}", file=sys.stderr)
        return 2
    builtin = spec.autoscaling.mode == "Builtin"
    least, most = (
        (spec.autoscaling.min_replicas, spec.autoscaling.max_replicas) if builtin else (spec.replicas, spec.replicas)
    )
    scenario = Scenario(
        requests.name,
        requests,
        profile,
        _promise(spec, given.ttft, given.tpot),
        initial=least,
        least=least,
        most=most,
        gateways=given.gateways,
        patience=given.patience,
        strategy=spec.routing.strategy,
    )
    run = simulate(scenario, controller, given.seed)
    found = figures(run)
    try:
        if given.decisions:
            given.decisions.write_bytes(b"".join(decisions))
        if given.plot:
            # Imported here: loading matplotlib takes longer than most simulations.
            from octavo_simulator import plots  # noqa: PLC0415

            plots.timeline(run, given.plot)
    except OSError as error:
        print(f"octavo-simulate: {error.filename}: {error.strerror}; give the path of a file to write", file=sys.stderr)
        return 2
    for note in requests.notes:
        print(f"note: {note}", file=sys.stderr)
    print(json.dumps(_json(run, found)) if given.json else _text(run, found))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="octavo-simulate", description=__doc__)
    parser.add_argument("--spec", type=Path, required=True, metavar="YAML", help="file with one LLMDeployment")
    parser.add_argument(
        "--trace",
        type=Path,
        required=True,
        metavar="CSV",
        help="CSV file with arrival time, input and output length of each request",
    )
    parser.add_argument(
        "--profile",
        default="8b-24gb",
        metavar="NAME|JSON",
        help=f"cost profile of a pod: {', '.join(steptime.PROFILES)}, or a JSON file (default %(default)s)",
    )
    parser.add_argument(
        "--ttft",
        type=_positive,
        metavar="SECONDS",
        help="TTFT objective of a request (default: the spec's target, else 2)",
    )
    parser.add_argument(
        "--tpot",
        type=_positive,
        metavar="SECONDS",
        help="TPOT objective of a request (default: the spec's target, else 0.1)",
    )
    parser.add_argument(
        "--patience",
        type=_positive,
        default=60.0,
        metavar="SECONDS",
        help="client timeout for the first token (default %(default)g)",
    )
    parser.add_argument(
        "--gateways",
        type=int,
        choices=range(1, 17),
        default=2,
        metavar="1..16",
        help="gateway replicas (default %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of start times, noise and tie-breaking (default %(default)s)"
    )
    parser.add_argument("--plot", type=Path, metavar="SVG", help="plot load, replicas and TTFT into this file")
    parser.add_argument(
        "--decisions",
        type=Path,
        metavar="JSONL",
        help="write every decision to this file, in the format of the operator's --decision-log",
    )
    parser.add_argument("--json", action="store_true", help="print figures and decisions as JSON")
    return parser


def _profile(name: str) -> steptime.PodProfile:
    if name in steptime.PROFILES:
        return steptime.PROFILES[name]
    path = Path(name)
    try:
        return replace(steptime.parse(path.read_text(encoding="utf-8")), name=path.stem)
    except (OSError, UnicodeDecodeError) as error:
        raise steptime.ProfileError(
            f"--profile {name}: neither built in ({', '.join(steptime.PROFILES)}) nor a readable file: {error}"
        ) from error


class _OptionError(ValueError):
    """The value of an option is invalid."""


def _check_folder(path: Path | None) -> None:
    """Check before the simulation, not after it, that a file can be written."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise _OptionError(f"{path}: not a file in an existing folder; give the path of a file to write")


def _promise(spec: Spec, ttft: float | None, tpot: float | None) -> Promise:
    targets = spec.autoscaling.targets
    return Promise(
        ttft or (targets.ttft_milliseconds or 2000) / 1000, tpot or (targets.tpot_milliseconds or 100) / 1000
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 86400 seconds")
    return value


def _json(run: Run, found: WindowFigures) -> dict[str, object]:
    return {
        "trace": run.scenario.name,
        "profile": run.scenario.profile.name,
        "promise": {"ttft": run.scenario.promise.ttft, "tpot": run.scenario.promise.tpot},
        "figures": found.row(),
        "decisions": [
            {"at": decision.at, "replicas": decision.desired, "reason": decision.reason}
            for decision, before in zip(run.decisions, (None, *run.decisions), strict=False)
            if before is None or before.desired != decision.desired
        ],
    }


def _text(run: Run, found: WindowFigures) -> str:
    scenario, promise = run.scenario, run.scenario.promise
    head = (
        f"{scenario.name}: {found.requests} requests in {scenario.trace.seconds / 3600:.2f} h on "
        f"{scenario.profile.name}, {scenario.least} to {scenario.most} replicas"
    )
    rows = [
        (
            f"requests with TTFT up to {promise.ttft:g} s and TPOT up to {promise.tpot * 1000:g} ms",
            f"{found.attainment:.2%}",
        ),
        ("rejected, timed out", f"{found.rejected}, {found.timeout}"),
        ("TTFT, p50 and p99", f"{found.ttft_p50:.2f} s, {found.ttft_p99:.2f} s"),
        ("TPOT, p50 and p99", f"{found.tpot_p50 * 1000:.0f} ms, {found.tpot_p99 * 1000:.0f} ms"),
        ("GPU-hours", f"{found.gpu_hours:.2f}"),
        ("good requests per GPU-hour", f"{found.good_per_gpu_hour:.0f}"),
        ("replicas, mean", f"{found.mean_pods:.2f}"),
        ("pods created, changes per hour", f"{found.starts}, {found.changes_per_hour:.1f}"),
        ("recomputed tokens", f"{found.preemption_tax:.2%}"),
        ("prefix cache hits, share of prompt tokens", f"{found.hit_ratio:.1%}"),
        ("longest hold in the gateway", f"{found.longest_hold:.1f} s"),
    ]
    return f"{head}\n{table(('', 'value'), rows)}"


if __name__ == "__main__":
    sys.exit(main())
