"""The command line: one file a command, options in one place, no mathematics."""
