"""Controllers that set the replicas: Octavo's own policy, and the baselines."""
