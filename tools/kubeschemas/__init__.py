"""JSON schemas for kubeconform, from Kubernetes' OpenAPI and Octavo's CRD, to validate manifests offline."""
