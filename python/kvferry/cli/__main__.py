"""`python -m kvferry.cli`."""

from kvferry.cli import main

main()
