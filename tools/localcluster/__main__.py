"""`python tools/localcluster up|down|status|kubeconfig|registry`."""

import signal
import sys
from pathlib import Path

if not __package__:  # started by its folder: then the folder is on the path, and its parent is needed
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from localcluster.cli import main

# A cancelled `up` removes what it began, as with Ctrl-C.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
sys.exit(main())
