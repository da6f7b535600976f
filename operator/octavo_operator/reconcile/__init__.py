"""One level-based pass: observe, plan, execute."""
