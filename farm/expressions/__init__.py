"""Expressions that people write, in constraints of campaigns and in `--where`: one language, one set of checks and messages.

`parser` makes a checked tree of a text; `python` compiles it and `sql` translates it. The language is a part of Python's:
comparisons, `and or not`, `+ - * / // % **`, `in`, functions, numbers, words in quotes and names of a vocabulary. Nothing else
passes, so an expression cannot run code, and numbers are bounded, so it cannot hang.
"""
