"""The process: workers, signals, waking of models without replicas."""
