"""What the parts of Assay promise each other: read this folder first, it is the architecture."""
