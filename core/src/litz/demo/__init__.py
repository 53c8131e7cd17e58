"""`python -m litz.demo`: two real models, eager against litz, with the error of each against float64."""
