"""Memory layout of a zygote before it serves, so that forks are cheap."""
