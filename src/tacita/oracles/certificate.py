r"""What a private test has shown of a point: bounds, what they cover, what was assumed.

Place: [oracles.certificate] -> oracles.stationary_test. Public settings and one answer only: post-processing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StationaryCertificate:
    r"""Bounds on gradient and curvature at a point that a :class:`~tacita.StationaryTest` accepted.

    With :math:`a` = ``slack``, the noise that the test adds: gradient :math:`(1 + 2a)\alpha`, eigenvalue
    :math:`-(1 + 2a)\sqrt{\rho\alpha} - \tau`. Every number follows from public settings and from the fact that the
    test accepted; the point's own gradient and Hessian are not shown.

    Attributes:
        gradient_norm: At most this is the norm of the mean of the *clipped* gradients.
        eigenvalue: At least this is the smallest eigenvalue of the mean Hessian.
        alpha, hessian_lipschitz: What the test was for.
        slack: a, by how much answers may be wrong, in units of alpha (gradient) and of the curvature limit.
        failure_probability: Chance, over the test's own coins, that a point beyond the bounds is accepted at all.
        max_grad_norm: Clipping threshold of each record's gradient.
        num_records: The public divisor of the means.
        conditions: What was declared, and nobody enforces.
        session, test: Where the answer stands in the ledger.
        max_tests: How many points the test could answer for.
    """

    gradient_norm: float
    eigenvalue: float
    alpha: float
    hessian_lipschitz: float
    slack: float
    failure_probability: float
    max_grad_norm: float
    num_records: int
    conditions: tuple[str, ...]
    session: str
    test: int
    max_tests: int

    @property
    def certified_alpha(self) -> float:
        """The least accuracy of which the bounds make the point second-order stationary: 4 alpha at a slack of 1/2."""
        return max(self.gradient_norm, self.eigenvalue**2 / self.hessian_lipschitz)

    def __str__(self) -> str:
        conditions = "".join(f"\n  - {condition}." for condition in self.conditions)
        return (
            f"Accepted by test {self.test + 1} of at most {self.max_tests} (session {self.session}), asked for "
            f"alpha = {self.alpha:g}, rho = {self.hessian_lipschitz:g}.\n"
            f"Bounds, wrong with probability at most {self.failure_probability:.3g} over the test's own coins:\n"
            f"  - the mean of the clipped gradients has a norm of at most {self.gradient_norm:.4g};\n"
            f"  - the smallest eigenvalue of the mean Hessian is at least {self.eigenvalue:.4g}.\n"
            f"That is second-order stationary with alpha = {self.certified_alpha:.4g}, if\n"
            f"  - no record's gradient at the point is longer than {self.max_grad_norm:g} (else the gradient bound is "
            f"about the clipped gradients only);{conditions}\n"
            f"It is about the mean over these records, divided by num_records = {self.num_records}: not about other "
            "data, nor about any point but the one accepted."
        )
