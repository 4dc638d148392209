"""The framework-free core of the adapters: from a training loop's points to MLflow, without the loop ever waiting for it.

    training thread ──► writer thread ──► spool on local disk ──► shipper process ──► MLflow
      appends to memory    `recorder`         `spool`                `shipper`         `store`

`recorder.Recorder` is what an adapter holds; the shipper that it hires (`process`) stays for the trainer's next run.
Standard library only on the training side: MLflow is imported by the shipper alone.
"""
