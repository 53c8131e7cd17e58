"""`python -m litz_tools.demo`: two real models, eager against litz, with the error of each against float64."""
