"""What this machine needs: binaries that match their pins, system packages, and the checks of `doctor`."""
