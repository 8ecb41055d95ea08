"""Work on packed datasets: index, merge, verify, reseal, unpack."""
