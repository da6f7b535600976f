"""Tries every grammar of a request in a process of its own, before the engine gets it."""
