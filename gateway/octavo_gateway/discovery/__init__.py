"""Discovery of replicas by Kubernetes, DNS or a fixed list. The only package that uses the Kubernetes API."""
