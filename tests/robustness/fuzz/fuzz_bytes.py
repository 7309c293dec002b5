"""Mutations of the bytes of a file, which the kinds of fuzz.py share."""

from __future__ import annotations

import random
import struct

# Values at the limits of integers, which headers contain as sizes, rates and counts.
SIZES = (0, 1, 2, 255, 256, 65_535, 65_536, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
HEADER = 64  # bytes; most fields that change how a file is read are at its start


def mutate(content: bytes, rand: random.Random, others: list[bytes]) -> tuple[bytes, str]:
    """Return mutated bytes, and a description.

    Args:
        content: A valid file.
        rand: Source of random choices.
        others: Other valid files, of which parts can be inserted.
    """
    data = bytearray(content)
    steps = []
    for _ in range(rand.choice((1, 1, 1, 2, 4))):
        kind = rand.choice(
            ("header", "header", "size", "size", "flip", "cut", "insert", "remove", "splice", "run")
        )
        steps.append(kind)
        if not data:
            break
        place = rand.randrange(len(data))
        match kind:
            case "header":
                for _ in range(rand.choice((1, 1, 3))):
                    data[rand.randrange(min(HEADER, len(data)))] = rand.randrange(256)
            case "size":
                order = rand.choice("<>")
                number = struct.pack(f"{order}I", rand.choice(SIZES))[: rand.choice((2, 4))]
                place = rand.randrange(min(4 * HEADER, len(data)))
                data[place : place + len(number)] = number
            case "flip":
                for _ in range(rand.choice((1, 5, 100))):
                    data[rand.randrange(len(data))] ^= 1 << rand.randrange(8)
            case "cut":
                del data[place:]
            case "insert":
                data[place:place] = rand.randbytes(rand.choice((1, 4, 100)))
            case "remove":
                del data[place : place + rand.choice((1, 4, 100))]
            case "splice":
                other = rand.choice(others)
                data[place:] = other[rand.randrange(len(other)) :]
            case "run":
                data[place:place] = rand.choice((b"\0", b"\xff", b"A")) * rand.choice((10, 100_000))
    return bytes(data), ", ".join(steps)
