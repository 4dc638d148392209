"""The framework-independent core of the training hooks: it sends a training's metric values to MLflow without blocking the
training.

    training thread ──► writer thread ──► spool on local disk ──► shipper process ──► MLflow
      appends to memory    `recorder`         `spool`                `shipper`         `store`

The hook of each framework creates a `recorder.Recorder`. The recorder starts a shipper process (`shipper_process`), which also
serves the next run of the same training process. The training process imports only the standard library and small packages;
only the shipper process imports MLflow.
"""
