r"""What a private test has shown of a point: bounds, what they cover, and what was assumed.

Place: [oracles.certificate] -> oracles.stationary_test. Public settings and one answer only: post-processing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StationaryCertificate:
    r"""Bounds on gradient and curvature at a point that a :class:`~tacita.StationaryTest` accepted.

    With :math:`a` = ``slack``, which stands for the noise that the test adds, the gradient's norm is at most
    :math:`(1 + 2a)\alpha`, and the smallest eigenvalue is at least :math:`-(1 + 2a)\sqrt{\rho\alpha} - \tau`. Every
    number follows from public settings and from the fact that the test accepted. The point's own gradient and Hessian
    are not shown.

    Attributes:
        gradient_norm: Upper bound on the norm of the mean of the *clipped* gradients.
        eigenvalue: Lower bound on the smallest eigenvalue of the mean Hessian.
        alpha, hessian_lipschitz: The settings of the test.
        slack: a, by how much an answer may be wrong, in units of alpha (gradient) and of the curvature limit.
        failure_probability: Chance, over the test's own coins, that a point beyond the bounds is accepted at all.
        max_grad_norm: Clipping threshold of each record's gradient.
        num_records: The public divisor of the means.
        conditions: What was declared and is not enforced.
        session, test: The session of the ledger, and the number of the query in it.
        max_tests: The largest number of points that the test could answer for.
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
        """The least alpha for which the bounds show second-order stationarity; 4 alpha at a slack of 1/2."""
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
