"""What the cluster shows: pods and their problems, GPUs, model inspections, memory estimates."""
