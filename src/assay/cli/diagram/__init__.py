"""Diagrams of the installed package, as text, Mermaid and SVG."""
