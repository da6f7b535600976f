"""Entry point of `octavo-server`."""

from __future__ import annotations

import dataclasses
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from octavo_inference.common.timeline import Timeline
from octavo_inference.engine.spawn import EngineProcess

if TYPE_CHECKING:
    from octavo_protocol.server_settings import ServerSettings


def main() -> int:
    """Entry point; returns the exit status."""
    if sys.argv[1:2] == ["tune"]:
        from octavo_inference.tools.tune import command  # noqa: PLC0415 -- tools start no server processes

        return command.main(sys.argv[2:])
    if sys.argv[1:2] == ["bench"]:
        from octavo_inference.tools.bench import command as bench  # noqa: PLC0415

        return bench.main(sys.argv[2:])
    if sys.argv[1:2] == ["quantize"]:
        from octavo_inference.tools.quantize import command as quantize  # noqa: PLC0415

        return quantize.main(sys.argv[2:])
    timeline = Timeline.of_process()
    # Started first: the imports of the child take longer than everything this process does in parallel.
    child = EngineProcess()
    timeline.mark("engine started")
    # No object made during loading becomes garbage, so a collection only costs time; serving enables it again.
    gc.disable()
    try:
        return _main(child, timeline)
    except SystemExit:  # --help
        child.abandon()
        raise


def _main(child: EngineProcess, timeline: Timeline) -> int:
    from octavo_inference.common.errors import OctavoError  # noqa: PLC0415
    from octavo_inference.config.server import parse  # noqa: PLC0415
    from octavo_inference.server.auth import Keys  # noqa: PLC0415 -- imported in parallel with the engine
    from octavo_inference.server.sockets import Sockets  # noqa: PLC0415

    try:
        settings = _local(parse(sys.argv[1:]))
        sockets = Sockets(settings)
        keys = Keys(settings.api_key_file, "--api-key-file") if settings.api_key_file else None
        admin_keys = Keys(settings.admin_key_file, "--admin-key-file") if settings.admin_key_file else None
    except OctavoError as error:
        child.abandon()
        sys.stderr.write(f"octavo-server: {error}\n")
        return 2
    child.load(settings)
    timeline.mark("settings")
    from octavo_common import json_logs  # noqa: PLC0415
    from octavo_inference.server import lifecycle  # noqa: PLC0415

    json_logs.configure(settings.log_format)
    timeline.mark("imports")
    return lifecycle.run(settings, sockets, keys, admin_keys, child, timeline)


def _local(settings: ServerSettings) -> ServerSettings:
    """The settings with the local paths of the models' files. Downloads those given by name."""
    given = settings.engine.model, settings.engine.speculation_model
    if all(each is None or each == "smollm2" or Path(each).exists() for each in given):
        return settings
    from octavo_inference.download.hub_cache import local_settings  # noqa: PLC0415 -- most models are local paths

    engine, names = local_settings(settings.engine)
    return dataclasses.replace(settings, engine=engine, served_model_names=settings.served_model_names or names)


if __name__ == "__main__":
    sys.exit(main())
