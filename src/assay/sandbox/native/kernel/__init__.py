"""System calls, seccomp, Landlock and control groups."""
