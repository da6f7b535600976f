"""`octavo-server bench`: measures the speed of a model on this machine under prompt, decode and mixed loads."""
