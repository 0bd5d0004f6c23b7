"""``python -m capedjica`` is the command line."""

from capedjica.cli import main

main()
