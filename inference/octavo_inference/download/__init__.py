"""Models from hubs and buckets: downloaded whole and checked, or inspected by their headers."""
