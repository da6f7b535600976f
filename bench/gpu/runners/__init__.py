"""Other engines on the load of `peer`, each in a process of its own."""
