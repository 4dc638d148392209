"""The framework-independent core of the adapters: sends a training's points to MLflow without blocking the training.

    training thread ──► writer thread ──► spool on local disk ──► shipper process ──► MLflow
      appends to memory    `recorder`         `spool`                `shipper`         `store`

An adapter holds a `recorder.Recorder`. The shipper that the recorder starts (`shipper_process`) also serves the next run.
The training process uses only the standard library and small packages; only the shipper imports MLflow.
"""
