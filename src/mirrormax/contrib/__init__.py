"""Mirror descent and max-margin classifiers in the form that other libraries expect.

One module a library, each imported by its own name: :mod:`mirrormax.contrib.sklearn` (extra ``sklearn``),
:mod:`mirrormax.contrib.optax` (extra ``jax``), and a callback each for the Hugging Face Trainer
(:mod:`mirrormax.contrib.trainer`) and for Lightning (:mod:`mirrormax.contrib.lightning`).
Nothing else in the package needs them.
"""
