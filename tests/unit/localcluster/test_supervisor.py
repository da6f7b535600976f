"""Components that end are started again, and not at once when they ended at once."""

from pathlib import Path

import pytest

from localcluster import supervisor
from localcluster.supervisor import Supervisor, read_state


@pytest.mark.parametrize(("lived", "pause"), [(0.25, 0.75), (1.0, 0.0), (500.0, 0.0)])
def test_a_component_is_started_again_a_second_after_its_last_start_at_the_earliest(
    lived: float, pause: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").mkdir()
    now = 100.0
    monkeypatch.setattr(supervisor.time, "time", lambda: now)
    components = Supervisor(tmp_path, {"etcd": ["true"]})
    components.start("etcd")
    process = components._running["etcd"].process
    process.wait()
    # The real call would also take the exits of other tests' children.
    exits = [(process.pid, 0), (0, 0)]
    monkeypatch.setattr(supervisor.os, "waitpid", lambda *_: exits.pop(0))
    now += lived
    components.reap()
    if pause:
        now += pause - 0.01
        components.restart_due()
        assert read_state(tmp_path)["etcd"].restarts == 0
        now += 0.01
    components.restart_due()
    monkeypatch.undo()
    components.kill()
    assert read_state(tmp_path)["etcd"].restarts == 1
    assert read_state(tmp_path)["etcd"].started == now
