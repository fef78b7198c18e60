"""Names and defaults of the indices without the indices, which need torch: the command line's help does not wait."""

from enum import StrEnum

SVCCA_VARIANCE = 0.99  # share of the squared singular values; Raghu et al. 2017


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
