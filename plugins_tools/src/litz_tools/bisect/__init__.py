"""`litz bisect`: which decision makes a script slower, or wrong. In: a script and what to hold it against. Out: the
decision at fault, measured with and without it.

    sides.py      the two sides: litz as the script has it, and eager, Inductor, another commit, other options
    run.py        a side -> an Outcome: the script in a process of its own, decisions vetoed, calls timed or compared
    child.py      what runs in that process; it needs nothing of this litz, so that another commit's can be measured
    values.py     the child's part that compares results with eager's and float64's
    judge.py      Outcomes -> a number that is better when smaller, and how much of it is noise
    search.py     decisions and a measure -> the ones at fault, by halves
    bisection.py  all of these in order: the Finding
"""

from .bisection import Bisection, Finding, bisect
from .sides import Side, side_of

__all__ = ["Bisection", "Finding", "Side", "bisect", "side_of"]
