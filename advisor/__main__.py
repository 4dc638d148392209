"""`python -m advisor` is `advisor`."""

from advisor.cli import main

main()
