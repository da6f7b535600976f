"""Who decides the replicas: Octavo's own policy, and what others do."""
