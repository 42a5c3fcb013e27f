"""`homespun`, or `python -m homespun`. Ctrl-C counts from the first moment, also while things are being imported."""

import sys


def main() -> None:
    try:
        from homespun.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
