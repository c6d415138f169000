"""What this machine must have: binaries that match their pins, system packages, and what `doctor` looks at."""
