"""The command line: a thin way into the same code as the operator's."""
