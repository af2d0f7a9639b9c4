"""The deciding core: state, admission, plan, commit. No torch, no clock, no sockets; runs alike in production, tests and simulation."""
