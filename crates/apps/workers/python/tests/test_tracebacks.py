"""The lines of an exception's message stay with it."""

from __future__ import annotations

import unittest

from penstock_worker.tracebacks import format_traceback


def raised(error: BaseException) -> str:
    try:
        raise error
    except BaseException as caught:
        return format_traceback(caught, caught.__traceback__)


class Tracebacks(unittest.TestCase):
    def test_lines_of_a_message_are_indented(self):
        try:
            raise KeyError("inner\nof two lines")
        except KeyError as inner:
            error = ValueError("1 error for Item\nname\n  Field required\n\nlast")
            error.__cause__ = inner
        text = raised(error)
        self.assertTrue(
            text.endswith(
                "\nValueError: 1 error for Item\n  name\n    Field required\n  \n  last\n"
            ),
            text,
        )
        plain = [line for line in text.split("\n") if line and line[0] != " "]
        self.assertEqual(
            plain,
            [
                "Traceback (most recent call last):",
                "KeyError: 'inner\\nof two lines'",
                "The above exception was the direct cause of the following exception:",
                "Traceback (most recent call last):",
                "ValueError: 1 error for Item",
            ],
        )

    def test_one_line_is_as_python_writes_it(self):
        for error in [ValueError("x"), ValueError(), SystemExit(3)]:
            text = raised(error)
            self.assertNotIn("\n  ValueError", text)
            self.assertRegex(text, r"\n(ValueError|SystemExit)(: \w+)?\n$")

    def test_notes_stay_with_their_exception(self):
        error = ValueError("x")
        if hasattr(error, "add_note"):
            error.add_note("one\ntwo")
            error.add_note("three")
            self.assertTrue(raised(error).endswith("\nValueError: x\n  one\n  two\n  three\n"))

    def test_an_error_of_syntax_is_unchanged(self):
        try:
            compile("a b", "x.py", "exec")
        except SyntaxError as error:
            text = format_traceback(error, error.__traceback__)
            self.assertRegex(text, r"\nSyntaxError: [^\n]+\n$")
