"""The only package of the gateway that talks to Kubernetes."""
