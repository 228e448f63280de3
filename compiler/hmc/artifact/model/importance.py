"""What the importance of a head is: what an absolute value is taken of, how values are normalised, and their sign.

HeadMask, the analyses and what a checkpoint stores for the compiler name it by the same words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from hmc.artifact.errors import InvalidRequestError

Estimator = Literal["sentence", "token", "batch"]
WORDS = (*get_args(Estimator), "layer", "signed")
"""The words that name an importance."""


@dataclass(frozen=True)
class Importance:
    """I_h of a head, made of ∂L/∂ξ_h at ξ = 1, where ξ_h multiplies the head's output.

    The defaults are what both papers write, I_h = E_x |∂L(x)/∂ξ_h|, with a sentence as the sample x (Michel et al.
    2019, section 4.1; Sun et al. 2021, eq. 1). The program that Michel et al. released computes `token`, and `layer`
    with it where it is asked to normalise.
    """

    estimator: Estimator = "sentence"
    """What the absolute value is taken of.

    - `sentence`: the sum over a sentence; I_h is the mean over sentences, in nats per sentence.
    - `token`: a token at which the head computes an output; I_h is the mean over tokens, in nats per token.
    - `batch`: the sum over a batch, as one backward pass gives it to a mask that the batch shares; I_h is in nats per
      sentence.
    """
    normalise: Literal["none", "layer"] = "none"
    """`layer`: the values of the heads of one attention are divided by their ℓ2 norm."""
    sign: Literal["absolute", "signed"] = "absolute"
    """`signed`: no absolute value. I_h is then the mean of -∂L/∂ξ_h, to first order the loss that masking the head
    adds, and negative where masking it would help."""

    @classmethod
    def parse(cls, words: Iterable[str], where: str) -> Importance:
        """Reads words such as `token`, `layer` and `signed`, in any order. No word means the default.

        where: what holds the words, for messages. Raises InvalidRequestError for other words, and for two estimators.
        """
        stripped = [word.strip() for word in words]
        if unknown := [word for word in stripped if word not in WORDS]:
            raise InvalidRequestError(f"{where} {unknown[0]!r} names no importance; choose among {', '.join(WORDS)}")
        estimators: list[Estimator] = [name for name in get_args(Estimator) if name in stripped]
        if len(estimators) > 1:
            raise InvalidRequestError(f"{where} give one of {', '.join(estimators)}, not several")
        return cls(
            estimators[0] if estimators else "sentence",
            "layer" if "layer" in stripped else "none",
            "signed" if "signed" in stripped else "absolute",
        )

    def __str__(self) -> str:
        """The words, as `parse` reads them."""
        words = [self.estimator, *(["layer"] if self.normalise == "layer" else [])]
        return ",".join([*words, *(["signed"] if self.sign == "signed" else [])])


DEFAULT = Importance()
"""I_h as the papers write it."""
