"""From samples to tables, goals and JSON; nothing here measures.

`run` collects a Row for each server and number of connections, with one sample a round, and hands
them to `table`, `verdicts` and `as_json`. The figure of a row is the median of its rounds. A ratio is
taken in each round, where both were measured within a minute or so, and is the median of these: a
machine that changes its pace between rounds changes figures, not ratios.
What must stay true: a figure with errors is shown as such and never passes a goal.
"""

from dataclasses import asdict, dataclass, field
from statistics import median

HEAD = ("server", "conn.", "CPU us/request", "requests/s", "p99 ms", "ratio", "core", "")


@dataclass
class Row:
    """One server at one number of connections; a sample for each round that did not fail."""

    server: str
    connections: int
    samples: dict = field(default_factory=dict)
    failures: int = 0
    closes: bool = False

    def median(self, name):
        return median(getattr(sample, name) for sample in self.samples.values())

    @property
    def errors(self):
        return sum(sample.errors for sample in self.samples.values())

    @property
    def clean(self):
        """Measured in every round, without an error."""
        return bool(self.samples) and not self.failures and not self.errors

    @property
    def cpu_us(self):
        """One a round."""
        return [sample.cpu_us for sample in self.samples.values()]


@dataclass(frozen=True)
class Verdict:
    """One goal at one number of connections; `ratios` of all rounds, none if it was not measured."""

    scenario: str
    connections: int
    goal: object
    ratios: list

    @property
    def ratio(self):
        return median(self.ratios) if self.ratios else None

    @property
    def passes(self):
        return bool(self.ratios) and self.ratio <= self.goal.ratio

    @property
    def steady(self):
        """Whether all rounds say the same."""
        return len({ratio <= self.goal.ratio for ratio in self.ratios}) <= 1

    def __str__(self):
        word = "PASS      " if self.passes else "FALL SHORT"
        got = spread(self.ratios, 2) if self.ratios else "not measured"
        aim = f"{self.goal.of} <= {self.goal.ratio:.2f} x {self.goal.reference}"
        doubt = "" if self.steady else ", but rounds disagree"
        return f"{word}  {self.scenario}, {self.connections} connections: {aim}: {got}{doubt}"


def find(rows, server, connections):
    for row in rows:
        if (row.server, row.connections) == (server, connections):
            return row
    return None


def ratios(row, reference):
    """CPU per request of a row against the reference's, one for each round that has both."""
    if row is None or reference is None:
        return []
    pairs = [(row.samples[turn], reference.samples.get(turn)) for turn in row.samples]
    return [ours.cpu_us / theirs.cpu_us for ours, theirs in pairs if theirs and theirs.cpu_us]


def verdicts(name, goal, rows):
    """The goal at every number of connections that was asked for."""
    found = []
    for connections in sorted({row.connections for row in rows}):
        ours, theirs = (find(rows, who, connections) for who in (goal.of, goal.reference))
        clean = ours and theirs and ours.clean and theirs.clean
        found.append(Verdict(name, connections, goal, ratios(ours, theirs) if clean else []))
    return found


def table(rows, reference):
    """The lines of a scenario's table, columns aligned."""
    lines = [HEAD]
    for row in rows:
        if row.samples:
            lines.append(cells(row, ratios(row, find(rows, reference, row.connections))))
        else:
            lines.append((row.server, str(row.connections), "-", "-", "-", "-", "-", "FAILED"))
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    for line in lines:
        figures = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)][1:-1]
        yield "  ".join([line[0].ljust(widths[0]), *figures, line[-1]]).rstrip()


def cells(row, against):
    notes = [f"{row.errors} ERRORS"] if row.errors else []
    notes += [f"FAILED in {row.failures} rounds"] if row.failures else []
    notes += ["closes each connection"] if row.closes else []
    if row.median("others") > 0.05:
        notes.append(f"others took {row.median('others'):.0%} of a core")
    return (
        row.server,
        str(row.connections),
        spread(row.cpu_us, 1),
        f"{row.median('per_second'):,.0f}",
        f"{row.median('p99_ms'):.1f}",
        spread(against, 2) if against else "-",
        f"{row.median('busy'):.0%}",
        ", ".join(notes),
    )


def spread(values, digits):
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def as_json(row, against):
    """A row for --json: the figures of the table and the samples they come from."""
    result = {"server": row.server, "connections": row.connections, "closes": row.closes}
    if row.samples:
        names = ("cpu_us", "per_second", "p99_ms", "busy", "others")
        result |= {name: row.median(name) for name in names}
    return result | {
        "ratio": median(against) if against else None,
        "errors": row.errors,
        "failures": row.failures,
        "rounds": [asdict(sample) for sample in row.samples.values()],
    }
