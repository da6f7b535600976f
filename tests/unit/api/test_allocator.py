"""The allocator's settings, in a process of their own: they hold for all that comes later."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import re
from octavo_inference.common.allocator import limit_heap, trim

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1])

assert limit_heap()
before = resident()
# Blocks below the size that is mapped, kept apart by small ones that stay.
kept, large = [], []
for number in range(1000):
    large.append(b"x" * 100_000)
    kept.append(b"y" * 600)
full = resident() - before
large.clear()
trim()
print(full, resident() - before)
"""


def test_memory_between_blocks_that_stay_is_given_back():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    full, after = map(int, done.stdout.split())
    assert full > 80_000
    assert after < full / 4
