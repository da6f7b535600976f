"""The autoscaler: the pure policy and the loop that feeds it."""
