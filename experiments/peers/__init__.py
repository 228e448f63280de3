"""The engines that HMC is compared with, on the same weights: CTranslate2, Transformers and Optimum."""
