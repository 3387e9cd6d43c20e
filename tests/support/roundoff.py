"""Define the unit roundoffs, of which tolerances are multiples."""

#: Unit roundoff of fp64.
U = 2.0**-53
