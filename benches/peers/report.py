"""From samples to tables, goals and JSON; nothing here measures.

`run` collects a Row for each server and number of connections, with one sample a round, and hands
them to `table`, `verdicts` and `as_json`. The figure of a row is the median of its rounds; ratios
are medians divided by the reference's at the same number of connections.
What must stay true: a figure with errors is shown as such and never passes a goal.
"""

from dataclasses import asdict, dataclass, field
from statistics import median

HEAD = ("server", "conn.", "CPU us/request", "requests/s", "p99 ms", "ratio", "core", "")


@dataclass
class Row:
    """All rounds of one server at one number of connections."""

    server: str
    connections: int
    samples: list = field(default_factory=list)
    failures: int = 0
    closes: bool = False

    def median(self, name):
        return median(getattr(sample, name) for sample in self.samples)

    @property
    def errors(self):
        return sum(sample.errors for sample in self.samples)

    @property
    def clean(self):
        """Measured in every round, without an error."""
        return bool(self.samples) and not self.failures and not self.errors

    @property
    def cpu_us(self):
        values = [sample.cpu_us for sample in self.samples]
        return median(values), min(values), max(values)


@dataclass(frozen=True)
class Verdict:
    """One goal at one number of connections; `ratio` is None when it could not be measured."""

    scenario: str
    connections: int
    goal: object
    ratio: float | None

    @property
    def passes(self):
        return self.ratio is not None and self.ratio <= self.goal.ratio

    def __str__(self):
        word = "PASS      " if self.passes else "FALL SHORT"
        got = "not measured" if self.ratio is None else f"{self.ratio:.2f}"
        aim = f"{self.goal.of} <= {self.goal.ratio:.2f} x {self.goal.reference}"
        return f"{word}  {self.scenario}, {self.connections} connections: {aim}: {got}"


def find(rows, server, connections):
    for row in rows:
        if (row.server, row.connections) == (server, connections):
            return row
    return None


def ratio(row, reference):
    """CPU per request of a row against the reference's, or None when either has none."""
    if row is None or reference is None or not row.samples or not reference.samples:
        return None
    return row.cpu_us[0] / reference.cpu_us[0]


def verdicts(name, goal, rows):
    """The goal at every number of connections that was asked for."""
    found = []
    for connections in sorted({row.connections for row in rows}):
        ours, theirs = (find(rows, who, connections) for who in (goal.of, goal.reference))
        clean = ours and theirs and ours.clean and theirs.clean
        found.append(Verdict(name, connections, goal, ratio(ours, theirs) if clean else None))
    return found


def table(rows, reference):
    """The lines of a scenario's table, columns aligned."""
    lines = [HEAD]
    for row in rows:
        if row.samples:
            lines.append(cells(row, ratio(row, find(rows, reference, row.connections))))
        else:
            lines.append((row.server, str(row.connections), "-", "-", "-", "-", "-", "FAILED"))
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    for line in lines:
        figures = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)][1:-1]
        yield "  ".join([line[0].ljust(widths[0]), *figures, line[-1]]).rstrip()


def cells(row, against):
    figure, low, high = row.cpu_us
    notes = [f"{row.errors} ERRORS"] if row.errors else []
    notes += [f"FAILED in {row.failures} rounds"] if row.failures else []
    notes += ["closes each connection"] if row.closes else []
    if row.median("others") > 0.05:
        notes.append(f"others took {row.median('others'):.0%} of a core")
    return (
        row.server,
        str(row.connections),
        f"{figure:.1f} ({low:.1f}-{high:.1f})",
        f"{row.median('per_second'):,.0f}",
        f"{row.median('p99_ms'):.1f}",
        "-" if against is None else f"{against:.2f}",
        f"{row.median('busy'):.0%}",
        ", ".join(notes),
    )


def as_json(row, against):
    """A row for --json: the figures of the table and the samples they come from."""
    result = {"server": row.server, "connections": row.connections, "closes": row.closes}
    if row.samples:
        result |= dict(zip(("cpu_us", "cpu_us_min", "cpu_us_max"), row.cpu_us, strict=True))
        result |= {name: row.median(name) for name in ("per_second", "p99_ms", "busy", "others")}
    return result | {
        "ratio": against,
        "errors": row.errors,
        "failures": row.failures,
        "rounds": [asdict(sample) for sample in row.samples],
    }
