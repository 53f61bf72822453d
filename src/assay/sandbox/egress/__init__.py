"""The one way out of a sandbox: to hosts on a list, through a gate that looks at every address."""
