"""What all benchmarks share: loads, servers, HTTP clients, result files, plots."""
