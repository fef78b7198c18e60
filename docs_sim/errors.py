"""The one error that a user can mend. Everything else that escapes is a fault of docs-sim."""

from collections.abc import Iterable

_LONGEST = 200


class InputError(ValueError):
    """Something given by the user is wrong: one line that says what, where, and what to do. Exit status 2."""


class MissingExtraError(InputError):
    """An optional dependency is not installed."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs an optional dependency: pip install 'docs-sim[{extra}]'")


def shown(value: object) -> str:
    """An untrusted value in a message: quoted, and cut where nobody would read on."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def check_choice(what: str, choice: str, known: Iterable[str]) -> None:
    """Refuse a word that is none of ``known``.

    Raises:
        InputError: that lists them.
    """
    if choice not in list(known):
        raise InputError(f"unknown {what} {shown(choice)}; known: {', '.join(known)}")
