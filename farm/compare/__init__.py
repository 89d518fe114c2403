"""What measurements of two or more sides say of their difference: statistics, what is comparable, and what it costs."""
