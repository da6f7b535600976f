"""Octavo next to vLLM and llama.cpp on CPUs: `python -m bench.cpu`."""
