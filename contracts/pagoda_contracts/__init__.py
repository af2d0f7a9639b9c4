"""Every word that crosses a process: names, resources, launch configuration, messages. Nouns only: no I/O, no state."""
