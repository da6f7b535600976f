"""JSON schemas for kubeconform, from Kubernetes' OpenAPI and our own CRD: manifests are checked offline."""
