"""What a figure may be, by name. Imports nothing that takes time: the command line lists these in its help."""

from enum import StrEnum


class Scale(StrEnum):
    """What the colours of a heatmap show."""

    raw = "raw"
    excess = "excess"


class Format(StrEnum):
    """File formats of figures."""

    png = "png"
    svg = "svg"
    pdf = "pdf"
