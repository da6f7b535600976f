"""`octavo-server`."""

from __future__ import annotations

import sys
from importlib.metadata import version

from octavo_inference.api.auth import Keys
from octavo_inference.errors import OctavoError
from octavo_inference.settings import parse
from octavo_inference.sockets import Sockets
from octavo_inference.spawn import EngineProcess
from octavo_inference.timeline import Timeline


def main() -> int:
    """Entry point; returns the exit status."""
    timeline = Timeline.of_process()
    try:
        settings = parse(sys.argv[1:])
        sockets = Sockets(settings)
        keys = Keys(settings.api_key_file, "--api-key-file") if settings.api_key_file else None
        admin_keys = Keys(settings.admin_key_file, "--admin-key-file") if settings.admin_key_file else None
    except OctavoError as error:
        sys.stderr.write(f"octavo-server: {error}\n")
        return 2
    # The engine process starts before the imports of this one, which take as long as half of its loading.
    child = EngineProcess(settings)
    timeline.mark("engine started")
    from octavo_inference import logs, server  # noqa: PLC0415

    logs.configure(settings.log_format)
    timeline.mark("imports")
    return server.run(settings, sockets, keys, admin_keys, child, timeline, version("octavo"))


if __name__ == "__main__":
    sys.exit(main())
