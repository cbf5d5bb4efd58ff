"""Engines: the programs that generate samples. `protocol` says what an engine promises; `registry` makes one."""

from workers.engines.protocol import Engine, SampleKey, SampleRequest, Sampling, check
from workers.engines.registry import Maker, create

__all__ = ["Engine", "Maker", "SampleKey", "SampleRequest", "Sampling", "check", "create"]
