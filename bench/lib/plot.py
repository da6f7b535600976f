"""matplotlib settings of all plots: SVG without dates, for stable diffs."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams |= {"svg.hashsalt": "octavo", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}

import matplotlib.pyplot as plt  # noqa: E402 (the backend is chosen first)

__all__ = ["BLUE", "GREY", "RED", "plt", "save"]

BLUE, GREY, RED = "#2f6fb0", "#9aa5b1", "#b5482f"


def save(path: Path) -> Path:
    """Write the current figure and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plt.tight_layout()
    plt.savefig(path, metadata={"Date": None})
    plt.close()
    return path
