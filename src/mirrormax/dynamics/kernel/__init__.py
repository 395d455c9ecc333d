"""The compiled loop of simulations: blocks of trials in lockstep, one vector lane per trial (needs numba)."""
