"""Random models and paper instances: functions that return Tokens and a head."""

from attsvm.datasets.random import sphere

__all__ = ["sphere"]
