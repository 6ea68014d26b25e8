"""What every test may rely on."""

import signal

# A shell's background jobs begin with Ctrl-C ignored, and so would every process that a test starts and then
# interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
