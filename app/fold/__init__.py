"""The fold: what the verified records of a chain come to, for whoever reads it, in a database or in a file.

``fold`` is all of one chain and how a snapshot record says it, ``compare`` holds snapshots against it,
``administration`` is what the records of a tenant's administrative acts say. Nothing here does I/O or needs a
package of the server: what a process of the service knows, an auditor with a file can find out, too.
"""
