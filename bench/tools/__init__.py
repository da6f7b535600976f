"""Public load tools next to our own clients, on the same load: `python -m bench.tools`."""
