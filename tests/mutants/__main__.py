"""Makes each known mistake in a copy of the tree and runs the tests that must see it.

`python -m tests.mutants [WORD ...]` runs all mutants, or those whose names hold one of the words.
The same tests also run on the tree as it is: a test that fails there sees nothing. Exits with 1
where a mutant survives, or dies of anything but a failed test.

Not here, because this tree does not have what they break: trees of draft tokens, tables of blocks,
and blocks dropped at a deadline. That drafting goes on behind a drawn stop token is a matter of
time, which no law of the output shows while nothing is dropped: the steps of a block are counted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from tests.mutants import MUTANTS
from tests.mutants.run import ROOT, processes, run_tests


def main(words: Sequence[str]) -> int:
    """Runs the mutants and prints one line for each; gives the exit status."""
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    for mutant in chosen:  # before anything runs: one that does not apply fails loudly
        mutant.mutated((ROOT / mutant.file).read_text())
    tests = list(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    os.environ["OMP_NUM_THREADS"] = "1"
    num_killed = 0
    with processes() as pool:
        unmutated = pool.submit(run_tests, None, tests)  # first: the longest
        runs = [pool.submit(run_tests, mutant, mutant.tests) for mutant in chosen]
        for mutant, run in zip(chosen, runs, strict=True):
            one = run.result()
            print(f"{one.verdict:8} {one.wall_s:6.1f} s  {mutant.name}: {one.detail}", flush=True)
            num_killed += one.verdict == "killed"
        tree = unmutated.result()
    print(f"unmutated tree, {tree.wall_s:.1f} s: {tree.verdict}")
    print(f"{num_killed} of {len(chosen)} mutants killed")
    return int(num_killed < len(chosen) or tree.verdict != "SURVIVED")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
