"""The guard: pure decisions on what an agent may do, and the fold that its state is.

``policy`` reads the policy document, ``bodies`` what callers send, ``state`` folds verified records,
``action`` folds the records of one action, ``decide`` turns a request into the records to append and the
answer to give. Nothing here does I/O or reads a clock; the guides say what it promises.
"""
