"""HTTP: connections, requests to replicas, answers to clients."""
