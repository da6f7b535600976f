"""Downloads models from hubs and buckets, verified; or inspects them by their headers."""
