"""Which pairs, in which order, in which memory, on which device."""
