"""Fills the guestbook with sample entries: `python fill.py [COUNT]`, 50 by default.

Run it by hand before you look at the page or measure it. It needs no Flask and may run beside the
application. The same count always writes the same texts, so that measurements compare.
"""

import sys

import store

NAMES = [
    "Ada",
    "Grace",
    "Edsger",
    "Barbara",
    "Donald",
    "Radia",
    "Ken",
    "Frances",
    "Niklaus",
    "Mary",
]
MESSAGES = [
    "Lovely place. We will be back in spring.",
    "The view from the weir is worth the walk.",
    "Greetings from the other end of the valley!",
    "Came for the mill, stayed for the tea.",
    "Two children, one dog, no complaints.",
    "I was here when it rained.\nI was here when it stopped.",
    "Does anybody know what the wheel in the yard was for?",
]


def main():
    count = sys.argv[1] if len(sys.argv) > 1 else "50"
    if not (count.isascii() and count.isdigit()):
        sys.exit("usage: fill.py [COUNT]")
    store.prepare()
    for number in range(int(count)):
        store.add(NAMES[number % len(NAMES)], MESSAGES[number % len(MESSAGES)])
    print(f"{count} entries written to {store.path()}")


if __name__ == "__main__":
    main()
