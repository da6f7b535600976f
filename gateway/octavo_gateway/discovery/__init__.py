"""Where the replicas are: Kubernetes, DNS or a fixed list. The only package of the gateway that talks to Kubernetes."""
