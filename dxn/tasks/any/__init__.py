"""Any inputs in, any inputs out: one decoder writes the tokens of all of them."""
