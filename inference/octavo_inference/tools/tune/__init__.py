"""`octavo-server tune`: measure a load on this machine and write the settings that serve it fastest."""
