"""Entry point of the command line: ``capedjica`` or ``python -m capedjica``."""

import sys


def main() -> None:
    """Run the command line; exit without a traceback if interrupted during import."""
    try:
        from capedjica.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("capedjica: interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
