"""The front door: one command line over all packages."""
