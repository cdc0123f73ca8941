"""The command line."""

import argparse
from collections.abc import Sequence

from driftproof import __version__

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="driftproof", description="Open-set test-time adaptation for PyTorch.")
    parser.add_argument("--version", action="version", version=f"driftproof {__version__}")
    parser.parse_args(arguments)
    parser.print_help()
    return 0
