"""The process: workers, signals, polling of replicas and peers, wake-up of models without replicas."""
