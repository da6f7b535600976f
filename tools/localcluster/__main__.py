"""`python tools/localcluster up|down|status|kubeconfig|registry`."""

import signal
import sys
from pathlib import Path

if not __package__:  # run as `python tools/localcluster`: sys.path has this folder, but the imports need its parent
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from localcluster.cli import main

# A cancelled `up` removes the partial cluster, as with Ctrl-C.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
sys.exit(main())
