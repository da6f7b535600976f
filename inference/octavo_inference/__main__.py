"""`octavo-server`."""

from __future__ import annotations

import sys
from importlib.metadata import version

from octavo_inference.errors import OctavoError, SettingsError
from octavo_inference.settings import parse
from octavo_inference.timeline import Timeline


def main() -> int:
    """Entry point; returns the exit status."""
    timeline = Timeline.of_process()
    try:
        settings = parse(sys.argv[1:])
    except SettingsError as error:
        sys.stderr.write(f"octavo-server: {error}\n")
        return 2
    # The engine process starts before the imports of this one, which take as long as half of its loading.
    from octavo_inference.spawn import EngineProcess  # noqa: PLC0415

    child = EngineProcess(settings)
    timeline.mark("engine started")
    try:
        from octavo_inference import logs, server  # noqa: PLC0415

        logs.configure(settings.log_format)
        timeline.mark("imports")
        return server.run(settings, server.Sockets(settings), child, timeline, version("octavo"))
    except OctavoError as error:
        sys.stderr.write(f"octavo-server: {error}\n")
        return 2
    finally:
        child.connection.close()


if __name__ == "__main__":
    sys.exit(main())
