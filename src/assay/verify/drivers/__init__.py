"""What is sent into the sandbox to run Python tests: standard library and pytest only.

These modules are never imported by Assay. Their text is sent along with the order (see
`assay.verify.runners.python_process`), so that nothing of Assay has to be installed in a sandbox.
"""
