"""Interfaces and value types that the packages of Assay share. Read this folder first."""
