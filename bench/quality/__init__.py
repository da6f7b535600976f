"""Quality of formats on the real model: divergence, agreement, perplexity, bits per weight."""
