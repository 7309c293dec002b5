"""benchmarks/parity.py, whose public models are the tests' peers too."""

from benchmark import load

parity = load("parity")
