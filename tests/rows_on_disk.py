"""What many tests of results need: a run written row by row, and a command run in this process."""

from driftproof.bench import Store
from driftproof.cli import main


def write_rows(folder, spec, rows, conditions=None, protocol=None):
    """Write a run as a benchmark would, and return it."""
    run = Store(folder).run(spec)
    with run.locked():
        run.write_spec(spec, protocol or {})
        run.append(rows, [{}] * len(rows) if conditions is None else conditions)
    return run


def visits_of(spec, rounds, extra=0):
    """Return round and domain of each visit: complete rounds, and `extra` domains of the next."""
    visits = [(number, domain) for number in range(1, rounds + 2) for domain in spec.domains]
    return visits[: rounds * len(spec.domains) + extra]


def run_command(*words):
    """Run `driftproof` with these words and return its exit status."""
    try:
        main(list(map(str, words)))
    except SystemExit as ended:
        return ended.code
    raise AssertionError("the command returned without an exit status")
