"""OTLP: spans of OpenTelemetry, read exactly and turned into nodes of trace trees.

The way of a span: ``protobuf`` or ``json_form`` decodes an export into ``Span`` values, which are the same
whichever way it came; ``node`` turns each into a node; ``fragments`` puts those of one agent, session and
trace together.
"""
