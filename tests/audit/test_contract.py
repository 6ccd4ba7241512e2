"""Every gradient oracle keeps its claim; oracles that do not are refuted."""

import os
from dataclasses import dataclass

import pytest

from tacita import FlatClipper, GaussianMechanism, Release
from tacita.errors import UnsupportedEventError
from tacita.testing import check_oracle
from tests.audit.linear import ORACLES, Foreign, full, given, poisson

AUDIT = bool(os.environ.get("TACITA_AUDIT"))


@pytest.mark.parametrize("name", ORACLES)
def test_every_oracle_keeps_its_claim(name):
    for _ in range(3 if AUDIT else 1):
        check_oracle(ORACLES[name])


def test_an_oracle_of_a_third_party_is_asked_query_by_query():
    check_oracle(Foreign)


# -- the check can fail


def test_too_little_noise_of_a_third_party_is_refuted():
    with pytest.raises(AssertionError, match=r"adversary '.*' scored by .*refuted: epsilon 1.* is claimed"):
        check_oracle(lambda rows, ledger: Foreign(rows, ledger, quiet=0.2))


@dataclass(frozen=True, kw_only=True)
class Quiet(GaussianMechanism):
    """A little less noise than stated; in real queries too little to see."""

    def __call__(self, values, noise_std, normals):
        return super().__call__(values, {block: 0.95 * std for block, std in noise_std.items()}, normals)


def test_noise_five_per_cent_too_small_is_refuted_with_adversary_claim_and_bound():
    quiet = given(full, mechanism=Quiet(noise_multiplier=1.0))
    with pytest.raises(AssertionError, match=r"adversary '.*' scored by .*refuted: epsilon 3.* is claimed.*at least"):
        check_oracle(quiet)


def test_a_wider_clipper_than_stated_is_refuted():
    class Wide(FlatClipper):
        def weights(self, norms):
            return 1.15 * super().weights(norms)

    with pytest.raises(AssertionError, match="is claimed"):
        check_oracle(given(full, clipper=Wide(max_grad_norm=1.0), noise_multiplier=2.0))


def test_a_divisor_that_depends_on_the_data_is_seen():
    class Counting(Foreign):
        def query(self, params):
            release = super().query(params)
            return Release(**{**vars(release), "divisor": float(len(self._rows))})

    with pytest.raises(AssertionError, match="divisor"):
        check_oracle(Counting)


def test_a_query_without_a_line_in_the_ledger_is_seen():
    class Silent(Foreign):
        def query(self, params):
            if self._made == 0:
                return super().query(params)
            before, self._session = self._session, type("Deaf", (), {"reserve": lambda *a: 0, "spend": lambda *a: 0})()
            self._session.id = before.id
            return super().query(params)

    with pytest.raises(AssertionError, match="2 queries were answered, and the ledger has 1"):
        check_oracle(Silent)


def test_a_gradient_that_is_not_the_release_is_looked_at():
    class Leaking(Foreign):
        def query(self, params):
            release = super().query(params)
            gradient = {"theta": self._rows.sum(dim=0).clamp(-5, 5).nan_to_num(5.0)}
            return Release(**{**vars(release), "gradient": gradient})

    with pytest.raises(AssertionError, match="is claimed"):
        check_oracle(Leaking)


def test_a_release_that_is_not_finite_is_seen():
    class Poisoned(Foreign):
        def query(self, params):
            release = super().query(params)
            bad = {"gradient": {"theta": release.released["gradient"]["theta"] + 0 * self._rows.sum(dim=0)}}
            return Release(**{**vars(release), "released": bad})

    with pytest.raises(AssertionError, match="not finite"):
        check_oracle(Poisoned)


def test_an_oracle_that_claims_nothing_is_none():
    with pytest.raises(AssertionError, match="claims epsilon inf"):
        check_oracle(given(poisson, noise_multiplier=0.0))


def test_an_oracle_without_any_guarantee_is_none():
    def refusing(rows, ledger):
        raise UnsupportedEventError("no guarantee is proved")

    with pytest.raises(AssertionError, match="under every relation"):
        check_oracle(refusing)


def test_a_claim_that_depends_on_the_data_is_seen():
    def hopeful(rows, ledger):
        return given(full, noise_multiplier=2.0 + (rows.abs().sum() > 0))(rows, ledger)

    with pytest.raises(AssertionError, match="what is claimed depends on the data"):
        check_oracle(hopeful)


def test_delta_is_checked():
    with pytest.raises(ValueError, match="delta must be in"):
        check_oracle(ORACLES["poisson"], delta=0.0)
