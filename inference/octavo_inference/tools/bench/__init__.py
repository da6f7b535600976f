"""`octavo-server bench`: how fast a model runs on this machine, by prompt, decode and mixed loads."""
