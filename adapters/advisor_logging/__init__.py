"""Framework-free core of the adapters: moves a training loop's points to MLflow without making the loop wait.

    training thread ──► writer thread ──► spool on local disk ──► shipper process ──► MLflow
      appends to memory    `recorder`         `spool`                `shipper`         `store`

An adapter holds a `recorder.Recorder`; the shipper that it starts (`shipper_process`) serves the trainer's next run too.
The training side uses the standard library and small packages only: the shipper alone imports MLflow.
"""
