"""What the comparison computes, tested without a server: `python3 -m unittest` in this folder."""

import os
import unittest

from measure import Sample, Stat, process_table, session
from report import Row, table, verdicts
from servers import HELLO, PAGE, ROOT, SCENARIOS, Goal


def row(server, *cpu, errors=0, failures=0):
    samples = {
        turn: Sample(1000, errors, one, 5000.0, 1.5, 0.9, 0.0) for turn, one in enumerate(cpu)
    }
    return Row(server, 16, samples, failures)


class Stats(unittest.TestCase):
    def test_reads_a_name_with_parentheses_and_spaces(self):
        text = "7 (a) b (c) S 3 7 5 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0"
        self.assertEqual(Stat.parse(text), Stat(parent=3, session=5, ticks=100))

    def test_finds_descendants_that_left_the_session(self):
        table = {
            10: Stat(1, 10, 0),
            11: Stat(10, 10, 0),
            12: Stat(11, 12, 0),
            13: Stat(12, 12, 0),
            20: Stat(1, 20, 0),
        }
        self.assertEqual(session(table, 10), {10, 11, 12, 13})

    def test_knows_this_process(self):
        self.assertEqual(process_table()[os.getpid()].parent, os.getppid())


class Verdicts(unittest.TestCase):
    def test_compares_with_the_goal(self):
        goal = Goal(0.50, "nginx")
        cases = [
            ("half is enough", [row("penstock", 5), row("nginx", 10)], True, 0.5),
            ("rounds in pairs", [row("penstock", 9, 5, 2), row("nginx", 20, 10, 2)], True, 0.5),
            ("pairs where both are", [row("penstock", 4, 90), row("nginx", 10)], True, 0.4),
            ("more falls short", [row("penstock", 6), row("nginx", 10)], False, 0.6),
            ("errors void it", [row("penstock", 1, errors=1), row("nginx", 10)], False, None),
            ("so do the other's", [row("penstock", 1), row("nginx", 9, errors=1)], False, None),
            ("a failed round, too", [row("penstock", 1, failures=1), row("nginx", 9)], False, None),
            ("no reference", [row("penstock", 1)], False, None),
            ("nothing measured", [row("penstock"), row("nginx", 9)], False, None),
        ]
        for name, rows, passes, ratio in cases:
            with self.subTest(name):
                (verdict,) = verdicts("static", goal, rows)
                self.assertEqual((verdict.passes, verdict.ratio), (passes, ratio))

    def test_says_when_rounds_disagree(self):
        rows = [row("penstock", 4, 5, 6), row("nginx", 10, 10, 10)]
        (verdict,) = verdicts("static", Goal(0.50, "nginx"), rows)
        self.assertTrue(verdict.passes)
        self.assertIn("rounds disagree", str(verdict))

    def test_shows_errors_and_failures_in_the_table(self):
        lines = list(table([row("a", 5, errors=2), row("b")], "a"))
        self.assertIn("2 ERRORS", lines[1])
        self.assertIn("FAILED", lines[2])


class Scenarios(unittest.TestCase):
    def test_has_each_reference_among_its_servers(self):
        for name, scenario in SCENARIOS.items():
            with self.subTest(name):
                names = [server.name for server in scenario.servers]
                self.assertEqual(len(names), len(set(names)))
                self.assertLessEqual({scenario.goal.of, scenario.goal.reference}, set(names))

    def test_page_is_as_long_as_nginx_s_own(self):
        self.assertEqual(len(PAGE), 612)

    def test_hello_is_what_the_examples_say(self):
        for example in ("wsgi-hello/app.py", "rack-hello/config.ru"):
            text = (ROOT / "examples" / example).read_text()
            self.assertIn(repr(HELLO.decode())[1:-1], text)


if __name__ == "__main__":
    unittest.main()
