"""Pure builders of child objects: a resource and settings in, plain dicts out."""
