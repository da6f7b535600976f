"""How latent attention divides heads over programs. Needs no GPU library."""

LATENT_HEADS = 32
"""Most heads of a program: its sums of latents take half of the registers."""
LATENT_PROGRAMS = 1
"""Programs that a multiprocessor runs at a time: keys of one take most of the shared memory."""
