"""The cheapest machines within these bounds."""
