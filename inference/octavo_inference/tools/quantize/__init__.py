"""`octavo-server quantize`: writes a model with fewer bits per weight, and measures what that costs."""
