"""What is measured: each part gives rows, which `journal` does one after the other."""
