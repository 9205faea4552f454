"""Prints 64 kB of JSON as an API answers with: rows of a table, the same each time."""

import json
import random

LENGTH = 65_536


def row(source: random.Random, number: int) -> dict[str, object]:
    name = source.choice(["ada", "blaise", "charles", "dorothy", "emmy", "frances"])
    day = f"2026-{source.randrange(1, 13):02}-{source.randrange(1, 29):02}"
    return {
        "id": 48_213 + number,
        "name": f"{name} {source.choice(['lock', 'weir', 'sluice', 'mill'])}",
        "email": f"{name}.{source.randrange(10_000)}@example.com",
        "active": source.random() < 0.7,
        "balance": round(source.uniform(0, 5_000), 2),
        "created": f"{day}T10:{source.randrange(60):02}:00Z",
        "tags": source.sample(["new", "paid", "late", "export", "mail"], 2),
    }


def main() -> None:
    source = random.Random(64)
    rows: list[dict[str, object]] = []
    text = ""
    while len(text) < LENGTH:
        rows.append(row(source, len(rows)))
        text = json.dumps(rows)
    # The last row is cut to the byte; a body that is compressed needs no sense.
    print(text[:LENGTH], end="")


if __name__ == "__main__":
    main()
