"""`python tools/images [NAME...]`: build images and push them."""

import sys
from pathlib import Path

if not __package__:  # started by its folder: then the folder is on the path, and its parent is needed
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from images.cli import main

sys.exit(main())
