"""Octavo compared with vLLM and llama.cpp on CPUs: `python -m bench.cpu`."""
