"""Executors: run jobs one after the other, or in parallel on a cluster."""

from driftproof.bench.executors.local import Failures, run_locally
from driftproof.bench.executors.on_ray import run_on_ray

__all__ = ["EXECUTORS", "Failures", "run_locally", "run_on_ray"]

EXECUTORS = {"local": run_locally, "ray": run_on_ray}
