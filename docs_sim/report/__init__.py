"""From results to files and figures; knows of plain results only."""
