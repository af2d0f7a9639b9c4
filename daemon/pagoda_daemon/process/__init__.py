"""What belongs to a process of the daemon: its settings, its log, its parent."""
