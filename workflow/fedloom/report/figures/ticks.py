"""Ticks of a logarithmic axis."""

import numpy as np
from matplotlib.ticker import Locator, LogLocator, MaxNLocator


class Few(Locator):
    """Place ticks on a logarithmic axis so that all have room for a label."""

    def __call__(self) -> np.ndarray:
        """Return the ticks within what is seen."""
        assert self.axis is not None, "a locator of an axis"
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        """Return round numbers below 5-fold, 1, 2 and 5 below 100-fold, else powers of ten."""
        fold = vmax / vmin
        of_ten = LogLocator(subs=(1, 2, 5) if fold < 100 else (1,))
        ticks = np.array((MaxNLocator(5) if fold < 5 else of_ten).tick_values(vmin, vmax))
        return ticks[(ticks >= vmin) & (ticks <= vmax)]
