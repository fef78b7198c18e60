"""The names of the indices, without the indices: these need torch, and the command line's help does not wait for it."""

from enum import StrEnum


class IndexName(StrEnum):
    """The indices of ``table.INDICES``, in the order of tables and figures."""

    docs = "docs"
    docs_mean = "docs_mean"
    linear_regression = "linear_regression"
    cca = "cca"
    cca_r2 = "cca_r2"
    svcca = "svcca"
    svcca_r2 = "svcca_r2"
    pwcca = "pwcca"
    linear_hsic = "linear_hsic"
    linear_cka = "linear_cka"
    linear_cka_debiased = "linear_cka_debiased"
    rbf_cka = "rbf_cka"
    procrustes = "procrustes"
