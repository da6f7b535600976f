"""The engine as a process: built from settings, run in a loop, reached over a socket."""
