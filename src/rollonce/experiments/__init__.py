"""Pre-registered experiments: specification, preflights, gate, pilot, arms, evaluation, verdict. `rollonce run` drives
them."""
