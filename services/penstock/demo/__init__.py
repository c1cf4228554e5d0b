"""`penstock demo`: the whole chain on one machine, with live figures and a check at the end."""
