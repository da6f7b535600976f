"""Models and their replicas: load, reservations, retries."""
