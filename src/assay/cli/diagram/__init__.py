"""Pictures of the system, drawn from what it is: as text, as Mermaid and as SVG."""
