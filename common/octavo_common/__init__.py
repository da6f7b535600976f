"""What operator, gateway and server do the same way: log lines, failpoints, fairness, the cost of a step."""
