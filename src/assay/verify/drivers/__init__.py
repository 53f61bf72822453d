"""Drivers that run Python tests in a sandbox, with only the standard library and the runner.

Assay never imports these modules. It sends their source with each check (see
`assay.verify.runners.python`), so sandboxes need no installation of Assay.
"""
