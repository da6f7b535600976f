"""Settings of the engine and the server, and where they come from: flags, files, arguments."""
