"""The Kubernetes API as a few verbs on plain dicts."""
