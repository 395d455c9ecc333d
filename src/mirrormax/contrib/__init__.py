"""Mirror descent and max-margin classifiers in the form that other libraries expect.

One module a library, each imported by its own name: :mod:`mirrormax.contrib.sklearn` (extra ``sklearn``) and
:mod:`mirrormax.contrib.optax` (extra ``jax``). Nothing else in the package needs them.
"""
