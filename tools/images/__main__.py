"""`python tools/images [NAME...]`: build images and push them."""

import sys
from pathlib import Path

if not __package__:  # run as `python tools/images`: sys.path has this folder, but the imports need its parent
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from images.cli import main

sys.exit(main())
