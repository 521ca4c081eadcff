"""What runs inside the sandbox: a folder of its own, started without the rest of the package.

The server imports these modules as the package `inside`, with the standard library and pytest and
nothing else: no torch, whose import would take seconds and a gigabyte of address space per worker.
"""
