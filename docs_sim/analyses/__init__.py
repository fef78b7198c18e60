"""The questions that users ask, and their answers as frozen results."""
