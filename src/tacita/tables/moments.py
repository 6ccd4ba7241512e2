r"""Private mean and variance of features, channel by channel: one query, paid for like any other.

Place: [tables.moments] builds a :class:`~tacita.ClippedGradientOracle`. Features are private; what is released is not.
Source: Tramèr and Boneh (2021), https://arxiv.org/abs/2011.11660, Appendix B, "data normalisation". Differs from it in
one point: the thresholds are public numbers of the caller's. The paper's code takes medians of the data and does not
charge for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tacita import _validate
from tacita.clipping import PerLayerClipper
from tacita.ledger import Ledger, Session, Share
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.oracles.network import ClippedGradientOracle
from tacita.random import Randomness
from tacita.sampling import FullBatchSampler

SMALLEST_VARIANCE = 1e-12
SCALES = 1e-15, 1e15  # so that float32 holds what is released, times the scale


class FixedNormalization(nn.Module):
    r"""Map each channel to :math:`(x - \mu_c) / \sigma_c`, float32. The two are buffers, and nothing trains them.

    Until they are set, :math:`\mu = 0` and :math:`\sigma = 1`. :class:`~tacita.MomentsOracle` sets them from a private
    release; public numbers may be set by hand.

    Args:
        num_channels: The length of the axis after the batch.

    Example:
        >>> layer = FixedNormalization(3)
        >>> layer.set(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 2.0]))
        >>> layer(torch.ones(5, 3, 4))[0, :, 0]
        tensor([ 0.0000, -0.5000, -1.0000])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_channels))
        self.register_buffer("std", torch.ones(num_channels))

    def set(self, mean: Tensor, std: Tensor) -> None:
        """Set mean and standard deviation, shape (channels,) each."""
        if mean.shape != self.mean.shape or std.shape != self.std.shape:
            raise ValueError(f"mean and std must have the shape {tuple(self.mean.shape)}.")
        if not (mean.isfinite().all() and std.isfinite().all() and (std > 0).all()):
            raise ValueError("mean must be finite, and std finite and above 0.")
        self.mean.copy_(mean)
        self.std.copy_(std)

    def forward(self, features: Tensor) -> Tensor:  # (batch, channels, ...)
        shape = (1, -1, *(1,) * (features.ndim - 2))
        return (features.to(self.mean.dtype) - self.mean.view(shape)) / self.std.view(shape)


@dataclass(frozen=True)
class Moments:
    """Private means and standard deviations of features, by channel. They may be published.

    Attributes:
        mean: Shape (channels,).
        std: Shape (channels,), above 0.
        mean_noise, square_noise: Standard deviation of the noise in the mean, and in the mean of squares, of a channel;
            with ``scale``, of the channel over its scale.
    """

    mean: Tensor
    std: Tensor
    mean_noise: float
    square_noise: float


class MomentsOracle:
    r"""One private query for the mean and the variance of each channel over all records and positions.

    Record :math:`i` with features :math:`x_{i,c,p}`, divided by the public scale of their channel if there is one, adds
    two vectors over channels, each clipped to a public length:

    .. math:: m_i = \tfrac1P \sum_p x_{i,\cdot,p}, \quad \lVert m_i \rVert_2 \le C_m, \qquad
        s_i = \tfrac1P \sum_p x_{i,\cdot,p}^2, \quad \lVert s_i \rVert_2 \le C_s.

    Released are :math:`\hat m = \frac1n \sum_i m_i + N(0, \cdot)` and :math:`\hat s` in the same way. The variance is
    :math:`\hat s - \hat m^2`, but at least the standard deviation of the noise on :math:`\hat s`, below which it cannot
    be told from zero.

    Guarantee: that of a :class:`~tacita.ClippedGradientOracle`, which this is: :math:`m_i / C_m` and :math:`s_i / C_s`
    are the gradients of the loss :math:`-(a \cdot m_i / C_m + b \cdot s_i / C_s)` in :math:`a` and :math:`b`, clipped
    to length 1 each, at full batch. Nothing else looks at the features.

    Register what follows before the query. Then both compose tightly: build this oracle, build the training oracle on a
    model that begins with :attr:`layer`, then call :meth:`query`. If a later session has to depend on the release, set
    a share aside first (:meth:`tacita.Ledger.register_share`), and pass it as ``share=``.

    Args:
        features: Array or tensor of shape (records, channels, ...); a memory map of float16 will do.
        ledger: Pays; sets the neighboring relation and the privacy unit.
        num_records: Public number of records, the divisor; a declared guess under add_or_remove_one.
        max_mean_norm, max_square_norm: The thresholds :math:`C_m` and :math:`C_s`, > 0: public numbers, chosen without
            looking at the data. Too small ones shrink the estimates, too large ones make them noisy.
        scale: A typical size of each channel, shape (channels,), > 0: public numbers again, by which the features are
            divided first. All channels get the same noise; without a scale it drowns the small ones. Scattering
            features have one that is made without data, :func:`tacita.tables.wavelets`; with it, thresholds of
            ``2 * sqrt(channels)`` for the mean and ``4 * sqrt(channels)`` for the squares suit images.
        mechanism: As in :class:`~tacita.ClippedGradientOracle`. The standard deviation of the noise in the mean of a
            channel is ``sqrt(2) noise_multiplier max_mean_norm / num_records``, and twice that under replace_one.
        max_physical_batch_size: Records in memory at once.
        purpose, settings, session, share, randomness: As in :class:`~tacita.GradientOracle`.

    Raises:
        ValueError: A setting is wrong; the message names it and the way out.

    Example:
        >>> import torch, tacita
        >>> ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
        >>> share = ledger.register_share(1.0, 1e-6)
        >>> oracle = tacita.MomentsOracle(
        ...     torch.randn(1000, 4, 5), ledger=ledger, num_records=1000, max_mean_norm=2.0, max_square_norm=5.0,
        ...     mechanism=tacita.GaussianMechanism(noise_multiplier=10.0))
        >>> moments = oracle.query()
        >>> moments.mean.shape, round(moments.mean_noise, 4), oracle.layer.std.equal(moments.std)
        (torch.Size([4]), 0.0283, True)
    """

    def __init__(
        self,
        features: Any,
        *,
        ledger: Ledger,
        num_records: int,
        max_mean_norm: float,
        max_square_norm: float,
        mechanism: Mechanism | CalibratedGaussian,
        scale: Tensor | None = None,
        max_physical_batch_size: int | None = None,
        purpose: str = "moments",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        share: Share | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        if features.ndim < 2:
            raise ValueError(f"features must have the axes (records, channels, ...), got {features.ndim}.")
        self._mean_norm = _validate.threshold("max_mean_norm", max_mean_norm)
        self._square_norm = _validate.threshold("max_square_norm", max_square_norm)
        self.layer = FixedNormalization(features.shape[1])
        self._scale = _scale_of(scale, features.shape[1])
        bound = {**(settings or {}), "max_mean_norm": self._mean_norm, "max_square_norm": self._square_norm}
        if scale is not None:
            bound["scale"] = self._scale.tolist()
        self.oracle = ClippedGradientOracle(
            _Projections(self._scale, self._mean_norm, self._square_norm),
            lambda model, batch: model(batch[0]),
            (features,),
            ledger=ledger,
            sampler=FullBatchSampler(num_records=num_records),
            clipper=PerLayerClipper(max_grad_norm={"mean": 1.0, "square": 1.0}),
            mechanism=mechanism,
            planned_queries=1,
            max_physical_batch_size=max_physical_batch_size,
            purpose=purpose,
            settings=bound,
            session=session,
            share=share,
            randomness=randomness,
        )

    def query(self) -> Moments:
        """Make the query, set :attr:`layer`, and return what was released. There is one query: a second call raises."""
        oracle = self.oracle
        assert oracle.source.model is not None
        release = oracle.query(dict(oracle.source.model.named_parameters()))
        mean_noise, square_noise = (
            norm * release.noise_std[block] / release.divisor
            for block, norm in (("mean", self._mean_norm), ("square", self._square_norm))
        )
        mean = -self._mean_norm * release.gradient["mean"]
        square = -self._square_norm * release.gradient["square"]
        std = (square - mean.square()).clamp(min=max(square_noise, SMALLEST_VARIANCE)).sqrt()
        mean, std = mean * self._scale.to(mean.device), std * self._scale.to(std.device)
        self.layer.set(mean, std)
        if not oracle.session.closed:  # else an earlier process was killed after it
            oracle.session.close()
        return Moments(mean, std, mean_noise, square_noise)

    def __repr__(self) -> str:
        return f"MomentsOracle({self.oracle!r})"


def _scale_of(scale: Tensor | None, num_channels: int) -> Tensor:
    """Return a copy of the scale, float32; ones if there is none."""
    if scale is None:
        return torch.ones(num_channels)
    found = torch.as_tensor(scale).detach().to("cpu", torch.float32, copy=True)
    smallest, largest = SCALES  # written so that NaN is refused too
    if found.shape != (num_channels,) or not ((found >= smallest) & (found <= largest)).all():
        raise ValueError(f"scale must be {num_channels} numbers from {smallest:g} to {largest:g}, one a channel.")
    return found


class _Projections(nn.Module):
    """A loss whose gradients are a record's mean and mean square, each over its threshold."""

    scale: Tensor

    def __init__(self, scale: Tensor, max_mean_norm: float, max_square_norm: float) -> None:
        super().__init__()
        self.mean, self.square = (nn.Parameter(torch.zeros(len(scale))) for _ in range(2))
        self.register_buffer("scale", scale)
        self._over = max_mean_norm, max_square_norm

    def forward(self, features: Tensor) -> Tensor:  # (batch, channels, ...) -> (batch,)
        flat = features.to(torch.float32).reshape(*features.shape[:2], -1) / self.scale.unsqueeze(1)
        first, second = flat.mean(2) / self._over[0], flat.square().mean(2) / self._over[1]
        return -(first @ self.mean + second @ self.square)
