"""`octavo-simulate` as people call it."""

import json
from pathlib import Path

import pytest

from octavo_operator.autoscale.decision_record import replay
from octavo_simulator.__main__ import main

SPEC = """
apiVersion: octavo.dev/v1alpha1
kind: LLMDeployment
metadata: {name: chat}
spec:
  model: {uri: oci://registry/models/chat:1}
  autoscaling: {mode: Builtin, minReplicas: 1, maxReplicas: 4}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    spec, trace = tmp_path / "llmd.yaml", tmp_path / "trace.csv"
    spec.write_text(SPEC)
    trace.write_text("arrival,input,output\n" + "".join(f"{i * 2},400,50\n" for i in range(100)))
    return spec, trace


def test_table_and_json(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    spec, trace = files
    assert main(["--spec", str(spec), "--trace", str(trace)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("trace: 100 requests in 0.06 h on 8b-24gb, 1 to 4 replicas\n")
    assert "100.00% |" in text
    assert main(["--spec", str(spec), "--trace", str(trace), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["figures"]["attainment"] == 1.0
    assert found["decisions"][0]["replicas"] == 1


@pytest.mark.slow  # imports matplotlib
def test_picture_and_decisions(files: tuple[Path, Path], tmp_path: Path) -> None:
    spec, trace = files
    picture, log = tmp_path / "run.svg", tmp_path / "decisions.jsonl"
    assert main(["--spec", str(spec), "--trace", str(trace), "--plot", str(picture), "--decisions", str(log)]) == 0
    assert "<svg" in picture.read_text()
    assert not any(replay(log.read_bytes().splitlines()))


def test_the_promise_is_the_spec_s_targets(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    spec, trace = files
    spec.write_text(SPEC.replace("maxReplicas: 4", "maxReplicas: 4, targets: {ttftMilliseconds: 700}"))
    assert main(["--spec", str(spec), "--trace", str(trace), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["promise"] == {"ttft": 0.7, "tpot": 0.1}
    assert main(["--spec", str(spec), "--trace", str(trace), "--json", "--ttft", "3", "--tpot", "0.2"]) == 0
    assert json.loads(capsys.readouterr().out)["promise"] == {"ttft": 3.0, "tpot": 0.2}


def test_a_file_that_cannot_be_written_is_said_first(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, trace = files
    for option, path in (("--plot", tmp_path / "none" / "x.svg"), ("--decisions", tmp_path)):
        assert main(["--spec", str(spec), "--trace", str(trace), option, str(path)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.endswith("give the path of a file to write\n")


def test_a_profile_of_ones_own(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, trace = files
    profile = tmp_path / "mine.json"
    fast = {"base": 0.001, "prefill": 1e-6, "row": 1e-6, "context": 0.0, "pool_tokens": 100000, "noise": 0}
    profile.write_text(json.dumps(fast))
    assert main(["--spec", str(spec), "--trace", str(trace), "--profile", str(profile), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["tpot_p50"] == pytest.approx(0.001, rel=0.01)


@pytest.mark.parametrize(
    ("spec", "trace", "profile", "message"),
    [
        (SPEC, "arrival,input,output\n0,-4,1\n", None, "line 2: input is -4; expected 1 to"),
        (SPEC.replace("maxReplicas: 4", "maxReplicas: many"), None, None, "spec.autoscaling.maxReplicas: Input should"),
        (
            SPEC.replace("LLMDeployment", "Deployment"),
            None,
            None,
            "found 0 documents of kind LLMDeployment, expected one",
        ),
        (SPEC.replace("Builtin", "External"), None, None, "spec.autoscaling.mode: found External, which another"),
        ("a: [", None, None, "not YAML: while parsing"),
        (
            SPEC.replace(
                "maxReplicas: 4", "maxReplicas: 4, schedules: [{start: 0 8 * * *, durationMinutes: 60, minReplicas: 2}]"
            ),
            None,
            None,
            "spec.autoscaling.schedules: need a trace with dates as arrival times, found plain seconds",
        ),
        (SPEC, None, "none", "--profile none: neither built in (llama2-70b-4xh100, 8b-24gb) nor a readable"),
        (SPEC, None, {"base": 1}, "profile field prefill is missing"),
        (SPEC, None, {"speed": 1}, "profile field speed is unknown; known are name, base"),
        (
            SPEC,
            None,
            {"base": -1, "prefill": 0, "row": 0, "context": 0, "pool_tokens": 1},
            "profile field base: found -1, expected a number of at least 0",
        ),
        (
            SPEC,
            None,
            {"base": 1, "prefill": 0, "row": 0, "context": 0, "pool_tokens": 1.5},
            "profile field pool_tokens: found 1.5, expected int",
        ),
    ],
)
def test_bad_input_is_one_line(
    files: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spec: str,
    trace: str | None,
    profile: str | dict[str, object] | None,
    message: str,
) -> None:
    files[0].write_text(spec)
    if trace is not None:
        files[1].write_text(trace)
    more = []
    if isinstance(profile, dict):
        (tmp_path / "p.json").write_text(json.dumps(profile))
        more = ["--profile", str(tmp_path / "p.json")]
    elif profile:
        more = ["--profile", profile]
    assert main(["--spec", str(files[0]), "--trace", str(files[1]), *more]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("octavo-simulate: ")
    assert len(error.splitlines()) == 1
