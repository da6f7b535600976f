"""`python tools/toolbox`: builds, lists and checks the programs of the local cluster."""

import sys
from pathlib import Path

if not __package__:  # run as `python tools/toolbox`: sys.path has this folder, but the imports need its parent
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from toolbox.cli import main

sys.exit(main())
