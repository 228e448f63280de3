"""Words everybody shares: head layout, checkpoint format, bundle manifest, validation. NumPy and pydantic only."""

import os

# From 1.29 on ONNX Runtime reports to its makers what it runs, unless this is there before it is imported; and every
# room imports this package before it. Who wants that sets it to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
