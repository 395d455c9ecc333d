"""The solvers of hard and soft margins; :mod:`mirrormax.svm.dispatch` chooses among them."""
