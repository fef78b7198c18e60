"""Where the program starts, also as ``python -m docs_sim``: Ctrl-C ends it quietly even while it is still loading."""

import sys


def main() -> None:
    """Run the program: 0 done, 2 wrong input (one line), 1 a fault of docs-sim, 130 interrupted, 143 ended."""
    try:
        from docs_sim.cli.app import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        print("docs-sim: interrupted", file=sys.stderr)
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    main()
