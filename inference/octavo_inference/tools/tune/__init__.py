"""`octavo-server tune`: measures a load on this machine and writes the settings that serve it fastest."""
