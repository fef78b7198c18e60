"""Similarities of two neuron matrices: pure functions on 2-D arrays; ``table.py`` lists them."""
