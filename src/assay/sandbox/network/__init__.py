"""The egress proxy: which hosts a sandbox reaches, and how."""
